"""One image file as uint8 pixels in the shape that a network takes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, ImageOps
from torch import Tensor

from purecaps.errors import ConfigError, DataError

_PILLOW_MODE = {1: "L", 3: "RGB"}
_DEEP_GREY = ("I;16", "I;16L", "I;16B", "I;16N")


def load_image(path: str | os.PathLike[str], in_shape: tuple[int, int, int], *, invert: bool = False) -> Tensor:
    """Reads an image file as uint8 [C, H, W].

    The picture is turned as its EXIF tag says, laid on white where it is transparent, made grey or RGB as C
    asks, and stretched to H x W where it has another size.

    Args:
        path: a file that Pillow reads.
        in_shape: the model's (C, H, W); C is 1 or 3.
        invert: make dark light and light dark. MNIST's digits are light on dark: a photograph of ink on paper
            has to be inverted to look like one.
    """
    channels, height, width = in_shape
    pixels = read_pixels(path, channels=channels, size=(height, width))
    return 255 - pixels if invert else pixels


def read_pixels(path: str | os.PathLike[str], *, channels: int, size: tuple[int, int] | None = None) -> Tensor:
    """Reads an image file as uint8 [channels, H, W], stretched to `size` (H, W) where one is given."""
    check_channels(channels)
    if size is not None:
        check_size(size)
    try:
        with Image.open(path) as opened:
            picture = ImageOps.exif_transpose(opened)
            if picture.mode in _DEEP_GREY:
                # Pillow would cut 16-bit values off at 255; their upper byte is the picture.
                picture = Image.fromarray((np.asarray(picture) >> 8).astype(np.uint8))
            elif picture.mode in ("I", "F"):
                raise DataError(f"{Path(path)}: expected 8 or 16 bits a value, got Pillow mode {picture.mode}")
            if picture.has_transparency_data:
                ground = Image.new("RGBA", picture.size, "white")
                picture = Image.alpha_composite(ground, picture.convert("RGBA"))
            picture = picture.convert(_PILLOW_MODE[channels])
    except DataError:
        raise
    # Pillow's decoders raise whatever a broken file leads them to, far beyond OSError.
    except Exception as fault:
        raise _unreadable(path, fault) from fault
    if size is not None and picture.size != (size[1], size[0]):
        picture = picture.resize((size[1], size[0]), Image.Resampling.LANCZOS)
    pixels = np.array(picture, dtype=np.uint8)
    return torch.from_numpy(pixels.reshape(*pixels.shape[:2], channels)).permute(2, 0, 1).contiguous()


def is_grey(path: str | os.PathLike[str]) -> bool:
    """Whether a file is stored without colour; reads its header alone."""
    try:
        with Image.open(path) as picture:
            return picture.mode in ("1", "L", "LA", "I", "F", *_DEEP_GREY)
    except Exception as fault:
        raise _unreadable(path, fault) from fault


def shown_size(path: str | os.PathLike[str]) -> tuple[int, int]:
    """The (height, width) of a file's picture, turned as its EXIF tag says."""
    try:
        with Image.open(path) as picture:
            width, height = picture.size
            lies = picture.getexif().get(ExifTags.Base.Orientation, 1) >= 5
    except Exception as fault:
        raise _unreadable(path, fault) from fault
    return (width, height) if lies else (height, width)


def check_channels(channels: int) -> None:
    if channels not in _PILLOW_MODE:
        raise ConfigError(f"channels: expected 1 (grey) or 3 (RGB), got {channels}")


def as_size(size: int | tuple[int, int]) -> tuple[int, int]:
    """The (height, width) that a user's image_size means: an int is a square."""
    pair = (size, size) if isinstance(size, int) else size
    check_size(pair)
    return pair


def check_size(size: tuple[int, int]) -> None:
    if not isinstance(size, Sequence) or len(size) != 2 or any(not isinstance(side, int) or side < 1 for side in size):
        raise ConfigError(f"image_size: expected (height, width), each at least 1, got {size}")


def _unreadable(path: str | os.PathLike[str], fault: Exception) -> DataError:
    return DataError(f"{Path(path)}: expected an image that can be read, got: {fault}")
