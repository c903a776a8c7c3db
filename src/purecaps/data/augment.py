"""Random transforms of image batches, as tensor operations that run where the images are.

A transform is a frozen dataclass called with images and a key (see `purecaps.data.random`): the same two give
the same result, and every image of the batch gets its own random numbers. None reads a value back to the
host, so all can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.data.random import uniform
from purecaps.errors import ConfigError

MOST_PIXELS = 4096  # more would be zeros around the image, and take all memory


@dataclass(frozen=True)
class Transform(ABC):
    """What all random transforms share. `str(transform)` is the text that `transforms.parse` makes it of."""

    name: ClassVar[str]
    usage: ClassVar[str]
    keeps_range: ClassVar[bool] = True
    """Whether pixels of [0, 1] stay there."""

    @abstractmethod
    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        """Transforms float images [B, C, H, W] with the random numbers of a 0-d key."""

    def at_test(self, images: Tensor) -> Tensor:
        """What stands in for the transform when a network is evaluated: nothing is random there."""
        return images

    def out_size(self, height: int, width: int) -> tuple[int, int]:
        """The height and width that images of height x width come out with."""
        return height, width

    def __str__(self) -> str:
        arguments = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.default is MISSING:
                arguments.append(_number(value))
            elif value != field.default:
                arguments.append(f"{field.name}={_number(value)}")
        return f"{self.name}:{','.join(arguments)}" if arguments else self.name

    def _require_whole(self, field: str, at_least: int) -> None:
        value = getattr(self, field)
        if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
            raise ConfigError(f"{self.name}: {field} must be a whole number >= {at_least}, got {value!r}")
        if value > MOST_PIXELS:
            raise ConfigError(f"{self.name}: {field} must be a whole number <= {MOST_PIXELS}, got {value!r}")

    def _require_range(self, field: str, high: float = math.inf) -> None:
        value = getattr(self, field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < high:
            limit = "" if math.isinf(high) else f" and < {high:g}"
            raise ConfigError(f"{self.name}: {field} must be a number >= 0{limit}, got {value!r}")


@dataclass(frozen=True)
class Shift(Transform):
    """Moves each image by whole pixels, up to `pixels` each way; zeros come in, nothing wraps around."""

    name = "shift"
    usage = "shift:PIXELS"
    pixels: int

    def __post_init__(self) -> None:
        self._require_whole("pixels", at_least=0)

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        _, _, height, width = shape_of(images)
        return _random_window(images, key, self.pixels, height, width)


@dataclass(frozen=True)
class Crop(Transform):
    """Cuts a random size x size window out of each image, `padding` zeros added on every side before.

    At test the window is in the centre, half a pixel up and left where it cannot be exact.
    """

    name = "crop"
    usage = "crop:SIZE[,padding=PIXELS]"
    size: int
    padding: int = 0

    def __post_init__(self) -> None:
        self._require_whole("size", at_least=1)
        self._require_whole("padding", at_least=0)

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        _, _, height, width = shape_of(images)
        self.out_size(height, width)
        return _random_window(images, key, self.padding, self.size, self.size)

    def at_test(self, images: Tensor) -> Tensor:
        _, _, height, width = shape_of(images)
        self.out_size(height, width)
        top, left = ((side + 2 * self.padding - self.size) // 2 for side in (height, width))
        padded = F.pad(images, [self.padding] * 4)
        return padded[:, :, top : top + self.size, left : left + self.size]

    def out_size(self, height: int, width: int) -> tuple[int, int]:
        largest = min(height, width) + 2 * self.padding
        if self.size > largest:
            raise ConfigError(
                f"crop: size must be <= {largest} for {height}x{width} images with padding {self.padding},"
                f" got {self.size}"
            )
        return self.size, self.size


@dataclass(frozen=True)
class Flip(Transform):
    """Mirrors each image left to right with probability one half."""

    name = "flip"
    usage = "flip"

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        batch, _, _, _ = shape_of(images)
        mirrored = uniform(key, (batch, 1, 1, 1)) < 0.5
        return torch.where(mirrored, images.flip(-1), images)


@dataclass(frozen=True)
class Affine(Transform):
    """Rotates, scales, shears and moves each image about its centre: bilinear, zeros come in.

    Args:
        degrees: the angle is drawn from -degrees to degrees.
        scale: the factor is drawn from 1 - scale to 1 + scale.
        shear: the horizontal move for each pixel of height is drawn from -shear to shear.
        shift: the moves across and down, in pixels, are drawn from -shift to shift.
    """

    name = "affine"
    usage = "affine:[degrees=ANGLE][,scale=FRACTION][,shear=TANGENT][,shift=PIXELS]"
    degrees: float = 0.0
    scale: float = 0.0
    shear: float = 0.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        self._require_range("degrees")
        self._require_range("scale", 1)
        self._require_range("shear")
        self._require_range("shift")

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        batch, _, _, _ = shape_of(images)
        angle, scale, shear, across, down = (uniform(key, (5, batch)) * 2 - 1).unbind()
        return warp(
            images,
            angle=angle * math.radians(self.degrees),
            scale=1 + scale * self.scale,
            shear=shear * self.shear,
            across=across * self.shift,
            down=down * self.shift,
        )


@dataclass(frozen=True)
class Cutout(Transform):
    """Zeroes a size x size square of each image; its centre is any pixel, and the edges cut it off."""

    name = "cutout"
    usage = "cutout:SIZE"
    size: int

    def __post_init__(self) -> None:
        self._require_whole("size", at_least=0)

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        batch, _, height, width = shape_of(images)
        top, left = _random_corners(key, batch, height, width)
        rows = torch.arange(height, device=images.device) - (top - self.size // 2).view(-1, 1, 1, 1)
        columns = torch.arange(width, device=images.device) - (left - self.size // 2).view(-1, 1, 1, 1)
        inside_rows = ((rows >= 0) & (rows < self.size)).transpose(-1, -2)  # [B, 1, H, 1]
        inside_columns = (columns >= 0) & (columns < self.size)  # [B, 1, 1, W]
        return images.masked_fill(inside_rows & inside_columns, 0.0)


def warp(images: Tensor, *, angle: Tensor, scale: Tensor, shear: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Warps each image about its centre: shears it, turns it, scales it, then moves it.

    Args:
        images: float [B, C, H, W].
        angle: radians [B], anticlockwise as the image is seen.
        scale: factor [B]; more than 1 enlarges.
        shear: [B], how far to the right a pixel goes for each pixel that it lies below the centre.
        across: pixels to the right [B].
        down: pixels down [B].
    """
    _, _, height, width = shape_of(images)
    # On a canvas with sides that are powers of two, pixel centres have exact normalised coordinates, so that
    # the identity gives the very image back; the zeros added are those that lie outside anyway.
    tall, wide = (1 << (side - 1).bit_length() for side in (height, width))
    canvas = F.pad(images, (0, wide - width, 0, tall - height))
    x = (_centred(width, images) - across.view(-1, 1)).unsqueeze(1)  # [B, 1, W]
    y = (_centred(height, images) - down.view(-1, 1)).unsqueeze(2)  # [B, H, 1]
    # Each output pixel asks where it came from, hence the inverse map. It goes through plain products rather
    # than affine_grid, whose matrix product may run in TF32 and blur the coordinates.
    cos, sin, shear = (part.view(-1, 1, 1) for part in (angle.cos() / scale, angle.sin() / scale, shear))
    from_x = torch.stack(((cos - shear * sin) * x * (2 / wide) + (width / wide - 1), sin * x * (2 / tall)))
    from_y = torch.stack(((-sin - shear * cos) * y * (2 / wide), cos * y * (2 / tall) + (height / tall - 1)))
    grid = (from_x + from_y).permute(1, 2, 3, 0)  # [B, H, W, 2]
    return F.grid_sample(canvas, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _centred(size: int, images: Tensor) -> Tensor:
    return torch.arange(size, dtype=images.dtype, device=images.device) - (size - 1) / 2


def _random_window(images: Tensor, key: Tensor, padding: int, height: int, width: int) -> Tensor:
    """One height x width window of each padded image [B, C, H, W], at a random place."""
    padded = F.pad(images, [padding] * 4) if padding else images
    # A view of all windows [B, C, tops, lefts, height, width]: one indexing then copies those drawn.
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    batch, _, tops, lefts = windows.shape[:4]
    top, left = _random_corners(key, batch, tops, lefts)
    return windows[torch.arange(batch, device=images.device), :, top, left]


def _random_corners(key: Tensor, batch: int, tops: int, lefts: int) -> tuple[Tensor, Tensor]:
    """Uniform int64 [B] below `tops` and `lefts`; u < 1 in 24 bits never rounds up to them."""
    top, left = uniform(key, (2, batch)).unbind()
    return (top * tops).to(torch.int64), (left * lefts).to(torch.int64)


def shape_of(images: Tensor) -> tuple[int, int, int, int]:
    """(B, C, H, W) of float images; others are refused."""
    if images.ndim != 4 or not images.is_floating_point():
        raise ConfigError(f"images: expected float [B, C, H, W], got {images.dtype} {list(images.shape)}")
    batch, channels, height, width = images.shape
    return batch, channels, height, width


def _number(value: float) -> str:
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
