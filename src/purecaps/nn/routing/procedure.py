"""A routing procedure together with the numbers that it learns: what capsule layers hold."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.nn.routing.capsules import Capsules, Compete, over_parents


class Routing(nn.Module):
    """The base of all procedures.

    A procedure works on each image by itself, so that a layer may route a batch in parts. What needs the whole batch,
    such as batch normalisation, goes into `finish`.

    Args:
        children: I, or None where the number is open; for subclasses that learn something, and so are the others.
        parents: O.
        pose_size: D.
    """

    name: str  # under which layers know it; that of the class where it says none
    starts_from_parents = False
    reads_activations = False  # those of the children

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if not hasattr(cls, "name"):
            cls.name = cls.__name__

    def __init__(self, children: int | None = None, parents: int | None = None, pose_size: int | None = None) -> None:
        super().__init__()

    def forward(
        self,
        votes: Tensor,
        activations: Tensor | None = None,
        *,
        parents: Tensor | None = None,
        compete: Compete = over_parents,
    ) -> Capsules:
        """Votes [..., I, O, D] and child activations [..., I] to capsules [..., O, D] and [..., O].

        Args:
            votes: what each child expects of each parent.
            activations: of the children. Procedures on vectors, whose length is the activation, do not read them.
            parents: poses [..., O, D] to start from, for the procedures that can.
            compete: how parents share a child; `over_parents` unless the layer has several windows on it.
        """
        if parents is not None and not self.starts_from_parents:
            raise ConfigError(
                f"parents: expected None, as {self.name} routing starts from its votes alone, got a tensor; "
                "inverted_dot_product takes parents"
            )
        return self.route(votes, activations, parents, compete)

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        """What `forward` gives; subclasses write it."""
        raise NotImplementedError

    def finish(self, capsules: Capsules) -> Capsules:
        """What is done once to the routed capsules [B, ..., O, D] of the whole batch."""
        return capsules


def need_activations(activations: Tensor | None, name: str) -> Tensor:
    if activations is None:
        raise ConfigError(
            f"activations: expected a tensor [..., I], as {name} routing weighs children by them, got None"
        )
    return activations


def need_children(children: int | None, name: str) -> int:
    if children is None:
        raise ConfigError(
            f"children: expected a fixed number, as {name} routing has weights for each child, got None "
            "(transforms that are shared over positions leave the number open)"
        )
    return children
