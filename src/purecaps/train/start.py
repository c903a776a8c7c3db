"""Where a run begins: several seeds side by side where that gains something, else one after the other."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Unpack

import torch

from purecaps.data.transforms import parse
from purecaps.data.types import Dataset
from purecaps.models.guided import stack_obstacle
from purecaps.train.checkpoint import checkpoints
from purecaps.train.config import RunConfig
from purecaps.train.loop import Trainer, TrainerOptions
from purecaps.train.seeds import SeedsInTurn
from purecaps.train.trained_run import TrainedRun


def train(
    config: RunConfig, dataset: Dataset, out: str | os.PathLike[str], **options: Unpack[TrainerOptions]
) -> TrainedRun:
    """Trains a network: `make_trainer` with these arguments, run to its end."""
    return make_trainer(config, dataset, out, **options).run()


def make_trainer(
    config: RunConfig, dataset: Dataset, out: str | os.PathLike[str], **options: Unpack[TrainerOptions]
) -> Trainer | SeedsInTurn:
    """A run, checked and ready: several seeds side by side where that gains something, else one after the other.

    A run that is gone on with keeps to the way that it was begun in.

    Args:
        config: what to run.
        dataset: the images.
        out: the run's folder.
        options: those of `Trainer`.
    """
    out = Path(out)
    if config.seeds > 1:
        together = begun_side_by_side(out)
        if together is None:
            together = side_by_side(config, dataset, torch.device(options.get("device", "cpu")))
        if not together:
            return SeedsInTurn(config, dataset, out, **options)
    return Trainer(config, dataset, out, **options)


def begun_side_by_side(out: Path) -> bool | None:
    """How the several seeds of the run in `out` were begun; None where it has no checkpoint.

    The two ways keep their checkpoints in different places. So a run is gone on with as it was begun, on whatever
    device: else it would start at step 0 again.
    """
    if checkpoints(out / "checkpoints"):
        return True
    return False if any(checkpoints(folder / "checkpoints") for folder in out.glob("seed-*")) else None


def side_by_side(config: RunConfig, dataset: Dataset, device: torch.device) -> bool:
    """Whether several seeds are trained at once: on a GPU, where the network can be stacked.

    A small network leaves most of a GPU idle. It keeps the cores of a CPU busy, and by a path that a stack does not
    have: on two cores of an AMD EPYC five seeds side by side take 1.2 (LeNet) to 2.4 times (pcapsnet0) as long as in
    turn.
    """
    if device.type == "cpu":
        return False
    channels, height, width = dataset.in_shape
    shape = (channels, *parse(config.recipe.augment).out_size(height, width))
    return stack_obstacle(config.new_network(shape, dataset.num_classes, {})) is None
