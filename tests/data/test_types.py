from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor

from purecaps.data import Dataset, Split
from purecaps.errors import DataError


def images(count: int = 5, channels: int = 1, height: int = 7, width: int = 3) -> Tensor:
    return torch.zeros(count, channels, height, width, dtype=torch.uint8)


def labels(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def split(*values: int, channels: int = 1) -> Split:
    return Split(images(len(values), channels), labels(*values))


def assert_refused(message: str, make: type, *arguments: object) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        make(*arguments)


def test_a_dataset_unpacks_to_its_two_splits_and_knows_its_shape() -> None:
    dataset = Dataset("toy", split(0, 1, 2, channels=3), split(2, channels=3), ("a", "b", "c"))
    train, test = dataset
    assert (len(train), len(test)) == (3, 1)
    assert dataset.in_shape == (3, 7, 3)
    assert dataset.num_classes == 3


@pytest.mark.parametrize(
    ("bad_images", "got"),
    [
        (torch.zeros(5, 1, 7, 3), "float32 [5, 1, 7, 3]"),
        (torch.zeros(5, 7, 3, dtype=torch.uint8), "uint8 [5, 7, 3]"),
    ],
)
def test_images_that_are_not_uint8_of_rank_4_are_refused(bad_images: Tensor, got: str) -> None:
    assert_refused(f"images: expected uint8 [N, C, H, W], got {got}", Split, bad_images, labels(0, 1, 0, 1, 0))


@pytest.mark.parametrize(
    ("bad_labels", "got"),
    [
        (torch.zeros(5, dtype=torch.uint8), "uint8 [5]"),
        (torch.zeros(5, 1, dtype=torch.int64), "int64 [5, 1]"),
    ],
)
def test_labels_that_are_not_int64_of_rank_1_are_refused(bad_labels: Tensor, got: str) -> None:
    assert_refused(f"labels: expected int64 [N], got {got}", Split, images(), bad_labels)


def test_lengths_that_differ_are_refused_with_both_lengths() -> None:
    assert_refused("one for each of 5 images, got 4", Split, images(5), labels(0, 1, 0, 1))


def test_an_empty_split_is_refused() -> None:
    assert_refused("at least one image of one pixel, got uint8 [0, 1, 7, 3]", Split, images(0), labels())


def test_a_negative_label_is_refused_with_its_value() -> None:
    assert_refused("class numbers from 0 up, got -3", Split, images(2), labels(1, -3))


@pytest.mark.parametrize("side", ["train", "test"])
def test_a_label_beyond_the_classes_is_refused_with_its_split(side: str) -> None:
    good, bad = split(0, 1), split(0, 2)
    splits = (bad, good) if side == "train" else (good, bad)
    assert_refused(f"toy: expected {side} labels from 0 to 1, got 2", Dataset, "toy", *splits, ("a", "b"))


def test_a_single_class_is_refused() -> None:
    assert_refused("at least two classes, got 1: ('only',)", Dataset, "toy", split(0, 0), split(0), ("only",))


def test_two_classes_of_one_name_are_refused() -> None:
    assert_refused("distinct class names", Dataset, "toy", split(0, 1), split(0), ("a", "a"))


def test_splits_of_different_image_shapes_are_refused_with_both_shapes() -> None:
    assert_refused(
        "test images of [C, H, W] = [1, 7, 3] as the training images are, got [3, 7, 3]",
        Dataset,
        "toy",
        split(0, 1),
        split(0, 1, channels=3),
        ("a", "b"),
    )
