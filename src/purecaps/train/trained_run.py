"""What a finished run leaves in memory, and how it becomes a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from purecaps.data.preprocess import WHITENING, Zca
from purecaps.errors import CheckpointError, ConfigError
from purecaps.models.store import ModelInfo, save_model
from purecaps.train.config import RunConfig
from purecaps.train.log import Row
from purecaps.train.prepare import Prepared


@dataclass(frozen=True)
class TrainedRun:
    """What a finished run leaves in memory.

    Args:
        config: what was run.
        models: for each seed the final iterate, or its averaged weights where the recipe keeps them; in eval mode.
        model_options: what it was built with, besides its shape.
        image_shape: the raw images' (channels, height, width).
        class_names: what the classes are called.
        prepared: the loaders of its data.
        history: the rows of metrics.
        seconds: time spent in training steps, over all sittings.
        seconds_per_step: of a step once the run is under way; of all networks together where they ran side by side.
        peak_memory: most bytes that were allocated on the device in training; None where it is not a CUDA device.
        side_by_side: how many networks were trained at once.
    """

    config: RunConfig
    models: list[nn.Module]
    model_options: dict[str, Any]
    image_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    prepared: Prepared
    history: list[Row]
    seconds: float
    seconds_per_step: float | None = None
    peak_memory: int | None = None
    side_by_side: int = 1

    @property
    def model(self) -> nn.Module:
        """The network, of the first seed where there are several."""
        return self.models[0]

    def info(self, record: Mapping[str, Any]) -> ModelInfo:
        """What a weights file says of one of the networks besides its weights.

        Args:
            record: how it was made and what it reached, as far as the run itself does not know.
        """
        config = self.config
        return ModelInfo(
            name=config.model,
            in_shape=self.prepared.train.in_shape,
            image_shape=self.image_shape,
            num_classes=len(self.class_names),
            overrides=self.model_options,
            class_names=self.class_names,
            pixel_scale=config.recipe.pixel_scale,
            augment=config.recipe.augment,
            preprocess=config.recipe.preprocess,
            trained_on=config.data,
            record={"val_size": config.recipe.val_size, **record},
        )

    def save(self, path: str | os.PathLike[str], *, seed: int | None = None) -> None:
        """Writes a network with all that is needed to use it again, as every verb of the command line reads it.

        Where images are whitened, whitening.safetensors is written beside it.

        Args:
            path: the safetensors file to write.
            seed: which of several seeds; None takes the first.
        """
        seeds = self.config.all_seeds
        seed = seeds[0] if seed is None else seed
        if seed not in seeds:
            raise ConfigError(f"seed: expected one of {', '.join(map(str, seeds))}, as the run has, got {seed!r}")
        network = self.models[seeds.index(seed)]
        if self.prepared.zca is not None:
            _save_whitening(self.prepared.zca, Path(path).parent / WHITENING)
        record = {
            "model": self.config.model,
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "data": self.config.data,
            "recipe": self.config.recipe_name,
            **({} if self.config.teacher is None else {"teacher": self.config.teacher}),
            "steps": self.config.recipe.steps,
            "train_seconds": round(self.seconds, 1),
            "seed": seed,
        }
        save_model(network, path, self.info(record))


def _save_whitening(zca: Zca, path: Path) -> None:
    """Writes the whitening; refuses to take away that of another network, which could then not be used."""
    if path.is_file():
        there = Zca.load(path)
        if not (torch.equal(there.mean, zca.mean.cpu()) and torch.equal(there.matrix, zca.matrix.cpu())):
            raise CheckpointError(
                f"path: expected a folder without the whitening of other images, got {path.parent}, whose {path.name} "
                "is another network's; save to another folder"
            )
    zca.save(path)
