"""What the tests of `purecaps reproduce` share: a scale smaller than tiny, and a workplace on two hundred digits."""

import dataclasses
from pathlib import Path

import torch

from purecaps.data import Dataset
from purecaps.experiments.paper.job import Workplace
from purecaps.experiments.paper.scale import TINY
from purecaps.experiments.paper.training import TrainingJob
from purecaps.train import Recipe

SMALLER = dataclasses.replace(TINY, images=16, seeds=1, changes={**TINY.changes, "steps": 2, "batch_size": 2})
RECIPE = Recipe(steps=6, batch_size=8, lr=0.01, loss="cross_entropy", log_every=2, checkpoint_every=2)


def workplace(folder: Path, digits: Dataset, **options) -> Workplace:
    """Every data set that a job asks for is the digits: 28x28 and grey, large enough for a crop of 24."""
    return Workplace(folder / "results", folder / "work", torch.device("cpu"), load=lambda name: digits, **options)


def training_job(name: str = "table1/some-job", **changes) -> TrainingJob:
    return TrainingJob(
        **{
            "name": name,
            "scale": "tiny",
            "model": "pcapsnet1",
            "data": "mnist",
            "recipe_name": "some",
            "recipe": RECIPE,
            "seeds": 2,
            **changes,
        }
    )
