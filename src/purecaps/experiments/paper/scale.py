"""How large a reproduction is: the paper's own size, or a tiny one that shows that everything works."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from purecaps.data.types import Dataset, Split
from purecaps.errors import unknown_name
from purecaps.train.recipe import Recipe


@dataclass(frozen=True)
class Scale:
    """What is made smaller, if anything.

    Args:
        name: what the command line calls it.
        images: how many images of each split are taken, the first ones; None takes all.
        seeds: the most seeds of one job; None sets no limit.
        changes: fields of every recipe that are replaced.
        stand_ins: models that others stand in for.
        large: what else is replaced in recipes of networks that take a CPU a second a step.
    """

    name: str
    images: int | None = None
    seeds: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    large: Mapping[str, Any] = field(default_factory=dict)

    def recipe(self, recipe: Recipe) -> Recipe:
        if self.images is not None:
            recipe = recipe.replace(val_size=min(recipe.val_size, self.images // 8))
        return recipe.replace(**self.changes)

    def model(self, name: str) -> str:
        return self.stand_ins.get(name, name)

    def most(self, seeds: int) -> int:
        return seeds if self.seeds is None else min(seeds, self.seeds)

    def for_large(self) -> Scale:
        """What it is for such networks: where it is small, one seed and a few images of it."""
        if self.images is None:
            return self
        return dataclasses.replace(self, images=min(self.images, 4), seeds=1, changes={**self.changes, **self.large})


FULL = Scale("full")
TINY = Scale(
    "tiny",
    images=200,
    seeds=2,
    changes={
        "steps": 20,
        "batch_size": 16,
        "precision": "fp32",
        "log_every": 10,
        "eval_every": 20,
        "checkpoint_every": 10,
    },
    stand_ins={"cnn_baseline": "lenet"},  # 35 million parameters are not tiny
    large={"steps": 2, "batch_size": 2},
)
SCALES = {scale.name: scale for scale in (FULL, TINY)}


def get_scale(name: str) -> Scale:
    if name not in SCALES:
        raise unknown_name("scale", name, SCALES)
    return SCALES[name]


def first_images(dataset: Dataset, count: int | None) -> Dataset:
    """The data set with no more than `count` images in each split."""
    if count is None:
        return dataset
    train, test = (Split(split.images[:count], split.labels[:count]) for split in dataset)
    return Dataset(dataset.name, train, test, dataset.class_names)
