"""Brightness, contrast and standardisation, against what TensorFlow's functions of these names compute."""

import math

import pytest
import torch

from purecaps.data import Split
from purecaps.data.batch_plan import encode
from purecaps.data.loader import DeviceLoader
from purecaps.data.random import key, uniform
from purecaps.data.tone import Brightness, Contrast, Standardise
from purecaps.data.transforms import parse
from purecaps.errors import ConfigError

IMAGES = torch.rand(63, 3, 5, 7, generator=torch.Generator().manual_seed(0))
KINDS = [Brightness(0.3), Contrast(0.8), Standardise()]


def test_brightness_adds_one_number_to_a_whole_image():
    added = Brightness(0.25)(IMAGES, key(1)) - IMAGES
    numbers = added[:, 0, 0, 0]
    torch.testing.assert_close(added, numbers.view(-1, 1, 1, 1).expand_as(added), rtol=0, atol=1e-6)
    expected = (2 * uniform(key(1), (63,)) - 1) * 0.25
    torch.testing.assert_close(numbers, expected, rtol=0, atol=1e-6)
    assert numbers.min() < -0.2
    assert numbers.max() > 0.2


def test_contrast_keeps_each_channels_mean_and_scales_the_rest():
    changed = Contrast(0.8)(IMAGES, key(1))
    torch.testing.assert_close(changed.mean(dim=(2, 3)), IMAGES.mean(dim=(2, 3)), rtol=0, atol=1e-6)
    factors = changed.std(dim=(2, 3)) / IMAGES.std(dim=(2, 3))  # [B, C]
    torch.testing.assert_close(factors, factors[:, :1].expand_as(factors), rtol=1e-4, atol=0)
    assert 0.2 <= factors.min() < 0.4
    assert 1.6 < factors.max() <= 1.8


def test_nothing_is_clipped():
    dark = torch.zeros(63, 1, 3, 3)
    assert Brightness(0.25)(dark, key(1)).min() < -0.1


@pytest.mark.parametrize("image", range(3))
def test_an_image_is_standardised_over_all_its_numbers(image):
    numbers = IMAGES[image].flatten().tolist()
    mean = sum(numbers) / len(numbers)
    deviation = math.sqrt(sum((number - mean) ** 2 for number in numbers) / len(numbers))
    expected = [(number - mean) / deviation for number in numbers]
    assert Standardise()(IMAGES, key(0))[image].flatten().tolist() == pytest.approx(expected, abs=1e-5)


def test_standardisation_acts_at_test_too_and_the_others_do_not():
    transform = parse(("crop:4", "brightness:0.3", "contrast:0.8", "standardise"))
    expected = Standardise()(parse(("crop:4",)).at_test(IMAGES), key(0))
    assert torch.equal(transform.at_test(IMAGES), expected)
    assert not transform.crops_only_at_test
    assert parse(("crop:4", "brightness:0.3", "contrast:0.8")).crops_only_at_test


def test_an_image_of_one_colour_stays_finite_in_value_and_gradient():
    flat = torch.full((2, 3, 5, 7), 0.3, requires_grad=True)
    out = Standardise().at_test(flat)
    out.square().sum().backward()
    assert out.abs().max() < 0.01
    assert bool(flat.grad.isfinite().all())


@pytest.mark.parametrize("transform", KINDS, ids=str)
def test_they_are_functions_of_the_key_and_read_nothing_back(transform):
    kept = IMAGES.clone()
    first = transform(IMAGES, key(1))
    assert torch.equal(first, transform(IMAGES, key(1)))
    assert torch.equal(IMAGES, kept)
    assert first.shape == IMAGES.shape
    if not isinstance(transform, Standardise):
        assert not torch.equal(first, transform(IMAGES, key(2)))
    assert transform(torch.empty(6, 3, 9, 7, device="meta"), key(0, 1, device="meta")).shape == (6, 3, 9, 7)


@pytest.mark.parametrize("transform", KINDS, ids=str)
def test_text_and_transform_stand_for_each_other(transform):
    assert parse((str(transform),)).transforms == (transform,)


@pytest.mark.parametrize("text", ["brightness", "brightness:-1", "contrast:nan", "standardise:1"])
def test_a_text_that_makes_no_sense_is_refused(text):
    with pytest.raises(ConfigError, match=f"transform '{text}'.*allowed: {text.split(':')[0]}"):
        parse((text,))


@pytest.mark.parametrize("text", ["brightness:0.3", "contrast:0.8", "standardise"])
def test_the_batch_kernel_is_not_given_what_it_does_not_know(text):
    assert encode(parse(("flip",)), 8, 8) is not None
    assert encode(parse(("flip", text)), 8, 8) is None


def test_seeds_side_by_side_have_the_batches_that_each_has_alone():
    split = Split((IMAGES * 255).to(torch.uint8), torch.arange(63) % 10)
    augment = parse(("crop:4", "flip", "brightness:0.247", "contrast:0.8", "standardise"))
    both = DeviceLoader(split, 8, seed=(3, 4), augment=augment)
    for position, seed in enumerate((3, 4)):
        alone = DeviceLoader(split, 8, seed=seed, augment=augment)
        torch.testing.assert_close(both.batch(5)[0][position], alone.batch(5)[0], rtol=1e-5, atol=1e-5)
        order, step = alone.epoch_order(0), torch.tensor(5)
        torch.testing.assert_close(alone.take_in_order(order, step)[0], alone.batch(5)[0], rtol=0, atol=0)
