"""Several networks of one architecture as one module: the same layers over one more axis of weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.models.guided import Guided, is_guided, stack_obstacle
from purecaps.models.pcapsnet import PCapsNet
from purecaps.ops.triton.problem import memory_order
from purecaps.ops.validation import shape_text


class ModelStack(nn.Module):
    """Independent networks that are trained side by side; each sees a batch of its own.

    The axis of networks becomes one more group axis of every capsule convolution, so that S networks cost far less than
    S runs where a single one leaves the device idle.

    Args:
        models: networks of one architecture; their weights are copied.

    Shape:
        images [S, B, C, H, W] -> scores [S, B, num_classes]
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise ConfigError("models: expected at least one network, got none")
        obstacle = stack_obstacle(models[0])
        if obstacle is not None:
            raise ConfigError(f"models: expected networks that can be stacked, got {obstacle}; train them in turn")
        self.size = len(models)
        # In a list, so that its own weights are not registered as this module's.
        self._template = [copy.deepcopy(models[0])]
        self._names = {name.replace(".", "/"): name for name, _ in models[0].named_parameters()}
        self.weights = nn.ParameterDict(
            {
                flat: nn.Parameter(_stacked([model.get_parameter(name).detach() for model in models]))
                for flat, name in self._names.items()
            }
        )

    @property
    def template(self) -> nn.Module:
        """A network of the architecture, whose own weights mean nothing."""
        return self._template[0]

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self._each(self._template[0], "", images)
        return scores

    def guided(self, images: Tensor, labels: Tensor) -> Guided:
        """Each network's `guided`: scores [S, B, num_classes] and penalties [S]; the networks must have the hook."""
        return Guided(*self._each(_GuidedByLabels(self._template[0]), "network.", images, labels))

    def radii(self, images: Tensor) -> Tensor | None:
        """Each network's `PCapsNet.radii` [S, B, num_classes, H', W']; None where one network gives none."""
        template = self._template[0]
        if not isinstance(template, PCapsNet):
            return None
        try:
            radii: Tensor = self._each(_Radii(template), "network.", images)
            return radii
        except _NotAtHandError:
            return None

    def _each(self, module: nn.Module, prefix: str, images: Tensor, *more: Tensor) -> Any:
        """`module`, whose weights are named as the networks' with a prefix, for each network and its images."""
        if images.dim() != 5 or images.shape[0] != self.size:
            raise ConfigError(f"images: expected [{self.size}, B, C, H, W], got {shape_text(images.shape)}")
        weights = {prefix + name: self.weights[flat] for flat, name in self._names.items()}

        def one(weights: dict[str, Tensor], *inputs: Tensor) -> Any:
            return torch.func.functional_call(module, weights, inputs)

        # "different": where layers draw random numbers, each network draws its own.
        return torch.func.vmap(one, randomness="different")(weights, images, *more)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # The template's buffers (input standardisation) must be where the weights are.
        self._template[0]._apply(fn)
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def train(self, mode: bool = True) -> Self:
        self._template[0].train(mode)
        return super().train(mode)

    def unstack(self) -> list[nn.Module]:
        """The networks, each with a copy of its weights."""
        networks = []
        for index in range(self.size):
            network = copy.deepcopy(self._template[0])
            with torch.no_grad():
                for flat, name in self._names.items():
                    network.get_parameter(name).copy_(self.weights[flat][index])
            networks.append(network)
        return networks


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    """torch.stack that keeps the tensors' memory layout, which the kernels' speed rests on."""
    order = memory_order(tensors[0])
    stacked = torch.stack([tensor.permute(order) for tensor in tensors])
    return stacked.permute(0, *(1 + order.index(axis) for axis in range(tensors[0].dim())))


class _NotAtHandError(Exception):
    pass


class _Radii(nn.Module):
    """A network whose output is `radii`: torch.func.functional_call knows no other method than forward."""

    def __init__(self, network: PCapsNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        radii = self.network.radii(images)
        if radii is None:
            raise _NotAtHandError
        return radii


class _GuidedByLabels(nn.Module):
    """A network whose output is `guided`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, labels: Tensor) -> Guided:
        assert is_guided(self.network)
        return self.network.guided(images, labels)
