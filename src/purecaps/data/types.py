"""What every data set is once loaded: two splits of uint8 images with int64 labels, and the class names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from purecaps.errors import DataError


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, checked on construction.

    Args:
        images: uint8 [N, C, H, W], at least one image.
        labels: int64 [N], class numbers from 0 up, on the same device as the images.
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        if images.dtype != torch.uint8 or images.ndim != 4:
            raise DataError(f"images: expected uint8 [N, C, H, W], got {_describe(images)}")
        if labels.dtype != torch.int64 or labels.ndim != 1:
            raise DataError(f"labels: expected int64 [N], got {_describe(labels)}")
        if images.numel() == 0:
            raise DataError(f"images: expected at least one image of one pixel, got {_describe(images)}")
        if len(labels) != len(images):
            raise DataError(f"labels: expected one for each of {len(images)} images, got {len(labels)}")
        if labels.device != images.device:
            raise DataError(f"labels: expected on {images.device} as the images are, got {labels.device}")
        if (lowest := int(labels.min())) < 0:
            raise DataError(f"labels: expected class numbers from 0 up, got {lowest}")

    def __len__(self) -> int:
        return len(self.images)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A named set of images: `train, test = dataset` gives its two splits.

    Args:
        name: what the set is called in messages and reports.
        train: the training split.
        test: the test split; its images have the same [C, H, W] as the training images.
        class_names: one distinct name a class, in the order of the labels; at least two.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        count = len(self.class_names)
        if count < 2:
            raise DataError(f"{self.name}: expected at least two classes, got {count}: {self.class_names}")
        if len(set(self.class_names)) != count:
            raise DataError(f"{self.name}: expected distinct class names, got {self.class_names}")
        train_shape, test_shape = tuple(self.train.images.shape[1:]), tuple(self.test.images.shape[1:])
        if train_shape != test_shape:
            raise DataError(
                f"{self.name}: expected test images of [C, H, W] = {list(train_shape)}"
                f" as the training images are, got {list(test_shape)}"
            )
        for part, split in (("train", self.train), ("test", self.test)):
            if (highest := int(split.labels.max())) >= count:
                raise DataError(f"{self.name}: expected {part} labels from 0 to {count - 1}, got {highest}")

    def __iter__(self) -> Iterator[Split]:
        yield self.train
        yield self.test

    @property
    def in_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of every image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
