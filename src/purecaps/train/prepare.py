"""From a data set and a recipe to loaders, with the validation images held out of the training set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from purecaps.data.loader import DeviceLoader
from purecaps.data.preprocess import Zca, channel_stats, fit_zca, global_contrast_normalise
from purecaps.data.random import key, permutation
from purecaps.data.transforms import parse
from purecaps.data.types import Dataset, Split
from purecaps.errors import ConfigError
from purecaps.train.recipe import Recipe

# Neither which images are held out nor which ones whitening is fitted on depends on the run's seed: runs that are
# compared are judged by the same images, in the same form.
_HOLD_OUT = key(20191210, 0)
_WHITENING = key(20191210, 1)
_PROBE = key(20191210, 2)
ZCA_IMAGES = 10_000


@dataclass(frozen=True)
class Prepared:
    """Loaders of a run's splits, and what its network must know of the images.

    Args:
        train: training images, augmented.
        val: held-out training images, or None.
        probe: some of the training images, to be looked at untransformed; or None.
        test: test images; read at the end only.
        model_options: input normalisation to build the network with.
        zca: the fitted whitening, where the recipe asks for one.
    """

    train: DeviceLoader
    val: DeviceLoader | None
    probe: DeviceLoader | None
    test: DeviceLoader
    model_options: dict[str, Any]
    zca: Zca | None


def hold_out(split: Split, size: int) -> tuple[Split, Split | None]:
    """The split without `size` images, and those images; always the same ones."""
    if size == 0:
        return split, None
    if size >= len(split):
        raise ConfigError(
            f"val_size: expected fewer than the {len(split)} training images, got {size}; 0 holds none out"
        )
    order = permutation(_HOLD_OUT, len(split))
    # In their own order again, so that batches read memory forwards.
    held, kept = order[:size].sort().values, order[size:].sort().values
    return (
        Split(split.images[kept], split.labels[kept]),
        Split(split.images[held], split.labels[held]),
    )


def some_of(split: Split, size: int) -> Split:
    """No more than `size` images of a split, always the same ones: a folder's first would be of one class."""
    chosen = permutation(_PROBE, len(split))[:size].sort().values
    return Split(split.images[chosen], split.labels[chosen])


def whiten(images: Tensor, zca: Zca) -> Tensor:
    """Equations 5 to 7 of the paper on raw images [N, C, H, W]."""
    return zca(global_contrast_normalise(images))


def prepare(dataset: Dataset, recipe: Recipe, *, seeds: Sequence[int], device: torch.device | str) -> Prepared:
    """Loaders for a run.

    Args:
        dataset: the images.
        recipe: batch size, augmentation, pre-processing and how many images to hold out.
        seeds: the run's seeds, one or several: order of images, and their transforms.
        device: where the images are kept.
    """
    augment = parse(recipe.augment)
    train_split, val_split = hold_out(dataset.train, recipe.val_size)
    zca = None
    if recipe.preprocess == "gcn_zca":
        chosen = permutation(_WHITENING, len(train_split))[:ZCA_IMAGES]
        zca = fit_zca(global_contrast_normalise(train_split.images[chosen]))

    def loader(split: Split) -> DeviceLoader:
        return DeviceLoader(
            split,
            recipe.batch_size,
            seed=seeds[0] if len(seeds) == 1 else seeds,
            augment=augment,
            scale=recipe.pixel_scale,
            device=device,
            preprocessed=None if zca is None else whiten(split.images, zca),
        )

    options: dict[str, Any] = {}
    if recipe.preprocess == "standardise":
        mean, std = channel_stats(train_split.images)
        unit = 255 * recipe.pixel_scale  # what a white pixel is to the network; exactly 1 for 1/255
        # A channel that never changes has no deviation to divide by: one grey level stands in for it.
        options = {
            "mean": tuple(value * unit for value in mean),
            "std": tuple(max(value, 1 / 255) * unit for value in std),
        }
    return Prepared(
        train=loader(train_split),
        val=None if val_split is None else loader(val_split),
        probe=loader(some_of(train_split, recipe.probe_size)) if recipe.probe_size else None,
        test=loader(dataset.test),
        model_options=options,
        zca=zca,
    )
