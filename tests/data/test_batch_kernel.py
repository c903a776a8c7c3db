"""Training batches by one kernel, against the transforms one by one."""

import pytest
import torch

from interpreted import DEVICE
from purecaps.data import Split
from purecaps.data.augment import Shift
from purecaps.data.batch_plan import encode
from purecaps.data.loader import DeviceLoader
from purecaps.data.transforms import Compose, parse

pytestmark = pytest.mark.usefixtures("kernels")

CHAINS = [
    (),
    ("shift:2",),
    ("crop:6,padding=1", "flip"),
    ("cutout:4", "flip", "shift:1"),
    ("affine:degrees=40,scale=0.2,shear=0.3,shift=1.5", "shift:1", "flip", "cutout:3"),
]


def loader(specs, shape=(3, 8, 11), seed=3, dtype=torch.uint8):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (17, *shape), dtype=torch.uint8, generator=generator)
    split = Split(images, torch.arange(17) % 10)
    given = None if dtype == torch.uint8 else images.float() / 100 - 1
    return DeviceLoader(split, 4, seed=seed, augment=parse(specs), device=DEVICE, preprocessed=given)


def assert_same_batches(made, tolerance=0.0):
    for step in (0, 3, 9):
        images, labels = made.batch(step)
        order = made.epoch_order(step // made.steps_per_epoch)
        got, got_labels = made.take_in_order(order, torch.tensor(step, device=DEVICE))
        assert torch.equal(got_labels, labels)
        torch.testing.assert_close(got, images, rtol=0, atol=tolerance)


@pytest.mark.parametrize("specs", CHAINS, ids=" ".join)
@pytest.mark.parametrize("shape", [(1, 9, 7), (3, 8, 11)], ids=str)
def test_a_batch_is_what_the_transforms_make_of_it(specs, shape):
    # Pixels that move by whole steps are the same to the bit; interpolation rounds in another order.
    assert_same_batches(loader(specs, shape), 1e-5 if "affine" in "".join(specs) else 0.0)


def test_each_seed_has_the_batch_that_it_would_have_alone():
    assert_same_batches(loader(("shift:1", "flip"), seed=(5, -6)))


def test_preprocessed_images_are_taken_as_they_are():
    assert_same_batches(loader(("crop:5",), dtype=torch.float32))


def test_a_set_smaller_than_an_image_block_is_written_whole():
    assert_same_batches(loader(("flip",), shape=(1, 40, 41)))


def test_images_of_whole_blocks_have_their_channels_in_order():
    assert_same_batches(loader(("flip",), shape=(3, 48, 64)))


@pytest.mark.parametrize("last", ["brightness:0.3", "contrast:0.8", "standardise"])
@pytest.mark.parametrize("seed", [3, (5, -6)], ids=str)
def test_transforms_of_pixel_values_are_made_without_the_kernel(last, seed):
    assert_same_batches(loader(("crop:6", "flip", last), seed=seed))


class Unknown(Shift):
    """A transform of a user's own."""


@pytest.mark.parametrize("transforms", [(Shift(1), *parse(("affine:degrees=3",)).transforms), (Unknown(1),)])
def test_what_the_kernel_does_not_know_is_left_to_the_transforms(transforms):
    assert encode(Compose(transforms), 8, 8) is None
