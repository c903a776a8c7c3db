"""Which transforms the batch kernel knows, and how it is told about them."""

from __future__ import annotations

import math

from purecaps.data.augment import Affine, Crop, Cutout, Flip, Shift, Transform
from purecaps.data.random import hash_counter
from purecaps.data.transforms import Compose

WINDOW, FLIP, CUTOUT = 0, 1, 2

Chain = tuple[tuple[int, ...], ...]
Warp = tuple[float, ...]


def encode(augment: Compose, height: int, width: int) -> tuple[Chain, Warp] | None:
    """The transforms of height x width images as the kernel goes through them; None where it does not know one.

    Returns:
        All transforms but a first affine one, last first, each as (kind, hash of its position, numbers): a window as
        (tops, lefts, padding, height, width), a flip as (width,), a cutout as (height, width, size). And the first one
        where it is affine: (hash, radians, scale, shear, shift). An affine transform interpolates, so it can come
        only first.
    """
    rows: list[tuple[int, ...]] = []
    warp: Warp = ()
    for position, transform in enumerate(augment.transforms):
        hashed = hash_counter(position)
        if type(transform) is Affine and position == 0:
            warp = (hashed, math.radians(transform.degrees), transform.scale, transform.shear, transform.shift)
        else:
            numbers = _numbers(transform, height, width)
            if numbers is None:
                return None
            rows.append((numbers[0], hashed, *numbers[1:]))
        height, width = transform.out_size(height, width)
    return tuple(reversed(rows)), warp


def _numbers(transform: Transform, height: int, width: int) -> tuple[int, ...] | None:
    if type(transform) is Shift:
        return _window(transform.pixels, height, width, height, width)
    if type(transform) is Crop:
        return _window(transform.padding, height, width, transform.size, transform.size)
    if type(transform) is Flip:
        return (FLIP, width)
    if type(transform) is Cutout:
        return (CUTOUT, height, width, transform.size)
    return None


def _window(padding: int, height: int, width: int, tall: int, wide: int) -> tuple[int, ...]:
    return (WINDOW, height + 2 * padding - tall + 1, width + 2 * padding - wide + 1, padding, height, width)
