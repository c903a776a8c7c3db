from __future__ import annotations

import re

import pytest
import torch

from purecaps.data.augment import Affine, Crop, Cutout, Flip, Shift, Transform
from purecaps.data.random import key
from purecaps.data.transforms import TRANSFORMS, Compose, parse
from purecaps.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "transform"),
    [
        ("shift:2", Shift(2)),
        ("shift:0", Shift(0)),
        ("crop:24", Crop(24)),
        ("crop:32,padding=4", Crop(32, padding=4)),
        ("flip", Flip()),
        (
            "affine:degrees=7,scale=0.07,shear=0.05,shift=1.5",
            Affine(degrees=7, scale=0.07, shear=0.05, shift=1.5),
        ),
        ("affine:shear=0.1", Affine(shear=0.1)),
        ("affine:degrees=0.1234567891", Affine(degrees=0.1234567891)),
        ("affine", Affine()),
        ("cutout:9", Cutout(9)),
    ],
)
def test_text_and_transform_stand_for_each_other(text: str, transform: Transform) -> None:
    assert parse([text]) == Compose((transform,))
    assert str(transform) == text


def test_spaces_and_named_arguments_are_understood() -> None:
    assert parse([" crop : 32 , padding = 4 "]).transforms == (Crop(32, padding=4),)
    assert parse(["crop:padding=4,size=32"]).transforms == (Crop(32, padding=4),)


def test_a_whole_list_round_trips() -> None:
    specs = ("crop:24,padding=2", "flip", "cutout:5")
    assert parse(specs).specs == specs
    assert str(parse(specs)) == "crop:24,padding=2 flip cutout:5"
    assert parse([]) == Compose()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rotate:5", "unknown name 'rotate'"),
        ("", "unknown name ''"),
        ("Shift:2", "unknown name 'Shift'"),
        ("shift", "pixels is missing"),
        ("shift:", "pixels is missing"),
        ("shift:two", "pixels must be a whole number, got 'two'"),
        ("shift:1.5", "pixels must be a whole number, got '1.5'"),
        ("shift:-2", "pixels must be a whole number >= 0, got -2"),
        ("shift:1,2", "unexpected argument '2'"),
        ("shift:2,", "unexpected argument ''"),
        ("shift:2,pixels=3", "pixels is given twice"),
        ("crop:0", "size must be a whole number >= 1, got 0"),
        ("crop:32,padding=-1", "padding must be a whole number >= 0, got -1"),
        ("crop:32,pad=4", "unexpected argument 'pad=4'"),
        ("crop:32,padding=", "padding must be a whole number, got ''"),
        ("flip:1", "unexpected argument '1'"),
        ("affine:7", "unexpected argument '7'"),
        ("affine:degrees=x", "degrees must be a number, got 'x'"),
        ("affine:degrees=-7", "degrees must be a number >= 0, got -7.0"),
        ("affine:scale=1", "scale must be a number >= 0 and < 1, got 1.0"),
        ("affine:shear=nan", "shear must be a number >= 0, got nan"),
        ("affine:shift=inf", "shift must be a number >= 0, got inf"),
        ("cutout:-9", "size must be a whole number >= 0, got -9"),
    ],
)
def test_a_text_that_makes_no_sense_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        parse(["flip", text])
    assert repr(text) in str(error.value)
    name = text.partition(":")[0]
    allowed = [TRANSFORMS[name].usage] if name in TRANSFORMS else [kind.usage for kind in TRANSFORMS.values()]
    assert str(error.value).endswith(f"allowed: {', '.join(allowed)}")


def test_one_text_in_place_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a sequence of texts, got the one text 'flip'"):
        parse("flip")


@pytest.mark.parametrize("pixels", [1.0, True, "1"])
def test_a_transform_built_with_the_wrong_type_is_refused(pixels: object) -> None:
    with pytest.raises(ConfigError, match=f"pixels must be a whole number >= 0, got {pixels!r}"):
        Shift(pixels)  # type: ignore[arg-type]


def test_compose_sends_sizes_and_test_images_through_all() -> None:
    compose = parse(["crop:6,padding=1", "crop:3", "flip"])
    images = torch.rand(2, 3, 8, 7)
    assert compose.out_size(8, 7) == (3, 3)
    assert torch.equal(compose.at_test(images), images[:, :, 2:5, 1:4])
    assert compose(images, key(0)).shape == (2, 3, 3, 3)
    with pytest.raises(ConfigError, match="size must be <= 6 for 6x6 images with padding 0, got 7"):
        parse(["crop:6", "crop:7"]).out_size(8, 8)


def test_compose_of_nothing_gives_the_images_back() -> None:
    images = torch.rand(2, 3, 8, 7)
    assert Compose()(images, key(0)) is images
    assert Compose().at_test(images) is images
