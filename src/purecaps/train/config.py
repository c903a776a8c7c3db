"""What one run is: a network, data, a recipe and a seed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from purecaps.errors import CheckpointError, ConfigError, PurecapsError
from purecaps.files import atomic_write
from purecaps.models.registry import UnknownOptionError, build_model, get_entry
from purecaps.train.recipe import Recipe

DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class RunConfig:
    """A run, so that the same one can be started again or gone on with.

    Args:
        model: a registered model's name.
        data: a data set's name, or the path of a folder or file of images.
        recipe_name: the recipe that `recipe` started from.
        recipe: how to train.
        seed: initial weights, order of images and their transforms.
        seeds: how many networks to train, side by side where they can be, with the seeds from `seed` on.
        image_size: (height, width) that a folder's images are resized to; None takes them as they are.
        channels: 1 or 3 for a folder's images; None finds out.
        teacher: what the network to learn from is called, such as its file; None where there is none.
        options: what the network is built with besides the recipe's, such as {"pool": "max"}; JSON can hold it.
    """

    model: str
    data: str
    recipe_name: str
    recipe: Recipe = field(default_factory=Recipe)
    seed: int = 0
    seeds: int = 1
    image_size: tuple[int, int] | None = None
    channels: int | None = None
    teacher: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed: expected an int in [0, 2^63), got {self.seed}")
        if not 1 <= self.seeds <= 1000:
            raise ConfigError(f"seeds: expected an int in [1, 1000], got {self.seeds}")
        if self.seed + self.seeds > 2**63:
            raise ConfigError(f"seed: expected at most 2^63 - {self.seeds} with {self.seeds} seeds, got {self.seed}")

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return tuple(range(self.seed, self.seed + self.seeds))

    def new_network(self, in_shape: tuple[int, int, int], num_classes: int, options: Mapping[str, Any]) -> nn.Module:
        """The run's network with random weights: with the recipe's options, the run's own and these."""
        asked = self.recipe.model_options()
        for name in self.options.keys() & {**asked, **options}.keys():
            raise ConfigError(f"option: expected none that recipe or images decide, got {name}={self.options[name]!r}")
        try:
            return build_model(self.model, in_shape, num_classes, {**asked, **self.options, **options})
        except UnknownOptionError as error:
            if error.option in self.options:
                raise ConfigError(f"option: expected one that {self.model} has, got {error.option!r}") from error
            if error.option not in asked:
                raise
            raise ConfigError(
                f"recipe: expected one without {error.option} for {self.model}, which has no such option, got "
                f"{self.recipe_name!r} with {error.option} {asked[error.option]!r}; {self._way_out(error.option)}"
            ) from error
        except (TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RuntimeError) as error:
            # A value of a kind that nobody thought of fails anywhere; without such options, it is a bug.
            if isinstance(error, PurecapsError) or not self.options:
                raise
            given = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
            line = str(error).partition("\n")[0]
            raise ConfigError(f"option: expected what {self.model} can be built with, got {given}: {line}") from error

    def _way_out(self, option: str) -> str:
        own = get_entry(self.model).recipe
        if own != self.recipe_name:
            return f"its own recipe is {own!r}"
        return f"let its builder take {option}, or the recipe leave it out: recipe.replace({option}=None)"

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> RunConfig:
        size = values["image_size"]
        return cls(
            **{
                **values,
                "recipe": Recipe.from_dict(values["recipe"]),
                "image_size": None if size is None else (size[0], size[1]),
                "options": dict(values.get("options", {})),  # runs of older versions have none
            }
        )

    def save(self, path: Path) -> None:
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(self.as_dict(), indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> RunConfig:
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CheckpointError(f"{path}: expected the configuration of a run, got {error}") from error


def pick_device(name: str) -> torch.device:
    """The device a user's word names; "auto" takes cuda, then mps, then cpu."""
    if name not in DEVICES:
        raise ConfigError(f"device: expected one of {', '.join(DEVICES)}, got {name!r}")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    if not available[name]:
        there = ", ".join(kind for kind, is_there in available.items() if is_there)
        raise ConfigError(f"device: expected a device of this machine ({there}), got {name!r}")
    return torch.device(name)
