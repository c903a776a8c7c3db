from __future__ import annotations

import pytest
import torch
from torch import Tensor

from purecaps.data.loader import DeviceLoader
from purecaps.data.transforms import parse
from purecaps.data.types import Split
from purecaps.errors import ConfigError, DataError


def labelled_by_position(count: int, channels: int = 1, height: int = 5, width: int = 4) -> Split:
    """Images whose label is their position, and whose pixels are all that number."""
    labels = torch.arange(count)
    images = labels.to(torch.uint8).view(-1, 1, 1, 1).expand(count, channels, height, width).contiguous()
    return Split(images, labels)


def random_split(count: int) -> Split:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (count, 3, 7, 6), dtype=torch.uint8, generator=generator)
    return Split(images, torch.arange(count))


def positions(loader: DeviceLoader, *steps: int) -> list[int]:
    return [int(label) for step in steps for label in loader.batch(step)[1]]


def assert_same_batch(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> None:
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


def test_images_come_scaled_with_their_own_labels() -> None:
    loader = DeviceLoader(labelled_by_position(63, channels=3), 10, seed=0)
    images, labels = loader.batch(2)
    assert images.shape == (10, 3, 5, 4)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    expected = (labels.float() * (1 / 255)).view(-1, 1, 1, 1).expand_as(images)
    assert torch.equal(images, expected)


def test_pixels_are_multiplied_with_scale() -> None:
    loader = DeviceLoader(labelled_by_position(9), 9, seed=0, scale=1 / 256)
    images, labels = loader.batch(0)
    assert torch.equal(images[:, 0, 0, 0], labels / 256)


def test_a_batch_depends_on_its_step_and_not_on_what_was_asked_before() -> None:
    split, augment = random_split(63), parse(["shift:2", "flip"])
    forward = DeviceLoader(split, 10, seed=4, augment=augment)
    batches = [forward.batch(step) for step in range(20)]
    backward = DeviceLoader(split, 10, seed=4, augment=augment)
    for step in reversed(range(20)):
        assert_same_batch(backward.batch(step), batches[step])
        assert_same_batch(backward.batch(step), batches[step])


def test_other_seeds_and_epochs_give_other_orders() -> None:
    split = labelled_by_position(200)
    loader, other = DeviceLoader(split, 50, seed=4), DeviceLoader(split, 50, seed=5)
    orders = [positions(loader, 0, 1, 2, 3), positions(loader, 4, 5, 6, 7), positions(other, 0, 1, 2, 3)]
    assert len({tuple(order) for order in orders}) == 3
    for order in orders:
        assert sorted(order) == list(range(200))


def test_other_seeds_and_steps_give_other_transforms_of_the_same_images() -> None:
    augment, everything = parse(["shift:2"]), torch.arange(63)
    loader = DeviceLoader(random_split(63), 63, seed=4, augment=augment)
    other = DeviceLoader(random_split(63), 63, seed=5, augment=augment)
    images = [loader.take(everything, 0)[0], loader.take(everything, 1)[0], other.take(everything, 0)[0]]
    assert not torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])
    assert torch.equal(images[1], loader.take(everything, torch.tensor(1))[0])


def test_an_epoch_leaves_out_what_fills_no_batch() -> None:
    loader = DeviceLoader(labelled_by_position(63), 10, seed=1)
    assert loader.steps_per_epoch == 6
    for epoch in range(3):
        seen = positions(loader, *range(epoch * 6, epoch * 6 + 6))
        assert len(set(seen)) == 60


def test_an_epoch_without_drop_last_ends_in_a_smaller_batch() -> None:
    loader = DeviceLoader(labelled_by_position(63), 10, seed=1, drop_last=False)
    assert loader.steps_per_epoch == 7
    assert len(loader.batch(6)[1]) == 3
    assert sorted(positions(loader, *range(7, 14))) == list(range(63))
    small = DeviceLoader(labelled_by_position(6), 10, seed=1, drop_last=False)
    assert small.steps_per_epoch == 1
    assert sorted(positions(small, 3)) == list(range(6))


def test_an_epoch_that_divides_evenly_has_no_empty_batch() -> None:
    for drop_last in (True, False):
        loader = DeviceLoader(labelled_by_position(60), 10, seed=1, drop_last=drop_last)
        assert loader.steps_per_epoch == 6
        assert sorted(positions(loader, *range(6))) == list(range(60))


@pytest.mark.parametrize(("count", "batch_size"), [(40, 128), (1, 7), (5, 6), (7, 13)])
def test_a_split_smaller_than_a_batch_is_gone_through_again_and_again(count: int, batch_size: int) -> None:
    loader = DeviceLoader(labelled_by_position(count), batch_size, seed=2)
    assert loader.steps_per_epoch == 1
    seen = positions(loader, *range(2 * count))
    assert all(len(loader.batch(step)[1]) == batch_size for step in range(3))
    orders = [seen[start : start + count] for start in range(0, len(seen), count)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    if count > 1:
        assert orders[0] != orders[1]
    assert positions(loader, 1) == seen[batch_size : 2 * batch_size]


def test_a_small_split_and_a_large_one_use_the_same_orders() -> None:
    split = labelled_by_position(12)
    assert positions(DeviceLoader(split, 24, seed=3), 0) == positions(DeviceLoader(split, 6, seed=3), 0, 1, 2, 3)


def test_training_batches_are_transformed_and_evaluation_batches_are_not() -> None:
    split = random_split(23)
    loader = DeviceLoader(split, 8, seed=0, augment=parse(["crop:5", "flip"]))
    assert loader.in_shape == (3, 5, 5)
    assert loader.batch(0)[0].shape == (8, 3, 5, 5)
    batches = list(loader.eval_batches(10))
    assert [len(labels) for _, labels in batches] == [10, 10, 3]
    assert torch.equal(torch.cat([labels for _, labels in batches]), split.labels)
    expected = split.images[:, :, 1:6, 0:5].float() * (1 / 255)
    assert torch.equal(torch.cat([images for images, _ in batches]), expected)


def test_preprocessed_images_are_taken_as_they_are() -> None:
    split, processed = random_split(23), torch.randn(23, 3, 7, 6)
    loader = DeviceLoader(split, 8, seed=0, preprocessed=processed)
    images, labels = loader.batch(1)
    assert torch.equal(images, processed[labels])
    (first, _), *_ = loader.eval_batches(9)
    assert torch.equal(first, processed[:9])


def test_changing_a_batch_leaves_the_data_alone() -> None:
    split, processed = random_split(23), torch.randn(23, 3, 7, 6)
    loader = DeviceLoader(split, 8, seed=0, preprocessed=processed)
    kept_images, kept_labels = processed.clone(), split.labels.clone()
    for images, labels in (loader.batch(0), *loader.eval_batches(9)):
        images.zero_()
        labels.zero_()
    assert torch.equal(processed, kept_images)
    assert torch.equal(split.labels, kept_labels)


@pytest.mark.parametrize("batch_size", [0, -3])
def test_batches_of_nothing_are_refused(batch_size: int) -> None:
    with pytest.raises(ConfigError, match=f"batch_size: expected >= 1, got {batch_size}"):
        DeviceLoader(random_split(5), batch_size, seed=0)
    with pytest.raises(ConfigError, match=f"batch_size: expected >= 1, got {batch_size}"):
        next(DeviceLoader(random_split(5), 2, seed=0).eval_batches(batch_size))


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="step: expected >= 0, got -1"):
        DeviceLoader(random_split(5), 2, seed=0).batch(-1)


def test_preprocessed_images_of_another_kind_are_refused() -> None:
    split = random_split(5)
    with pytest.raises(DataError, match="expected one image for each of 5 labels, got 4"):
        DeviceLoader(split, 2, seed=0, preprocessed=torch.zeros(4, 3, 7, 6))
    with pytest.raises(DataError, match=r"expected float32 \[N, C, H, W\], got torch.float64 \[5, 3, 7, 6\]"):
        DeviceLoader(split, 2, seed=0, preprocessed=torch.zeros(5, 3, 7, 6, dtype=torch.float64))


def test_a_crop_the_images_are_too_small_for_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="size must be <= 6 for 7x6 images with padding 0, got 24"):
        DeviceLoader(random_split(5), 2, seed=0, augment=parse(["crop:24"]))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_batches_of_the_cpu() -> None:
    augment = parse(["shift:2", "crop:5", "flip", "cutout:3"])
    for count in (63, 7):
        cpu = DeviceLoader(random_split(count), 10, seed=4, augment=augment)
        cuda = DeviceLoader(random_split(count), 10, seed=4, augment=augment, device="cuda")
        for step in (0, 9):
            images, labels = cuda.batch(step)
            assert_same_batch((images.cpu(), labels.cpu()), cpu.batch(step))
