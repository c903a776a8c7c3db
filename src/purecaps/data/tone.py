"""Transforms of pixel values: brightness and contrast at random, and each image standardised by itself.

The three together, in this order, are what Sabour et al. (2017) do to CIFAR-10: tensorflow/models,
research/capsules/input_data/cifar10/cifar10_input.py. Nothing is clipped there, and so nothing is here: the
standardisation that follows knows no range.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from purecaps.data.augment import Transform, shape_of
from purecaps.data.random import uniform


@dataclass(frozen=True)
class Brightness(Transform):
    """Adds one number to all pixels of an image, drawn from -most to most; pixels are those of [0, 1]."""

    name = "brightness"
    usage = "brightness:MOST"
    keeps_range = False
    most: float

    def __post_init__(self) -> None:
        self._require_range("most")

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        batch, _, _, _ = shape_of(images)
        return images + (2 * uniform(key, (batch, 1, 1, 1)) - 1) * self.most


@dataclass(frozen=True)
class Contrast(Transform):
    """Multiplies each pixel's distance from its channel's mean by one number an image, from 1 - most to 1 + most."""

    name = "contrast"
    usage = "contrast:MOST"
    keeps_range = False
    most: float

    def __post_init__(self) -> None:
        self._require_range("most")

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        batch, _, _, _ = shape_of(images)
        factor = 1 + (2 * uniform(key, (batch, 1, 1, 1)) - 1) * self.most
        mean = images.mean(dim=(-2, -1), keepdim=True)
        return (images - mean) * factor + mean


@dataclass(frozen=True)
class Standardise(Transform):
    """Gives each image, all its channels together, mean 0 and deviation 1: nothing random, and it acts at test too."""

    name = "standardise"
    usage = "standardise"
    keeps_range = False

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        return self.at_test(images)

    def at_test(self, images: Tensor) -> Tensor:
        _, channels, height, width = shape_of(images)
        centred = images - images.mean(dim=(-3, -2, -1), keepdim=True)
        variance = centred.square().mean(dim=(-3, -2, -1), keepdim=True)
        # An image of one colour has no deviation. The floor is TensorFlow's per_image_standardization's, for [0, 1].
        return centred / variance.clamp(min=255**-2 / (channels * height * width)).sqrt()
