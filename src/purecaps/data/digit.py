"""The digit in a drawing or photograph, laid out as MNIST's are: what the demo's page does, step by step.

`find_ink` repeats `demo/page/paper.js`, `normalise` repeats `demo/page/preprocess.js`; a test holds them together.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from purecaps.data.image import read_pixels
from purecaps.errors import ConfigError, DataError

MOST_SIDE = 448  # larger images are scaled down
LEAST_CONTRAST = 0.12
NOISE = 0.004  # a spread of the ground that only a camera or a lossy format makes
BOX, SIDE = 20, 28  # MNIST's digits fill a box of 20 pixels in images of 28; other sizes keep the proportion

Grey = NDArray[np.float64]
"""Rows of numbers in 0 to 1."""


def load_digit(path: str | os.PathLike[str], in_shape: tuple[int, int, int]) -> Tensor:
    """Reads the digit of an image file as uint8 [1, S, S]: light on dark, cropped, scaled and centred as in MNIST.

    Args:
        path: a file that Pillow reads, with one digit on it, dark on light or light on dark.
        in_shape: the model's (1, S, S).
    """
    channels, height, width = in_shape
    if channels != 1 or height != width:
        raise ConfigError(f"in_shape: expected (1, S, S), grey and square, got {tuple(in_shape)}")
    pixels = read_pixels(path, channels=1)[0].numpy()
    scale = MOST_SIDE / max(pixels.shape)
    if scale < 1:
        rows, columns = (max(1, _round(size * scale)) for size in pixels.shape)
        pixels = np.asarray(Image.fromarray(pixels).resize((columns, rows), Image.Resampling.BOX))
    ink = find_ink(pixels / 255.0)
    # The page keeps ink in 8 bits too: what is fainter than that does not count.
    digit = None if ink is None else normalise(np.floor(255 * ink + 0.5) / 255, height)
    if digit is None:
        raise DataError(f"{Path(path)}: expected a digit that stands out from its ground, found none")
    return torch.from_numpy(np.floor(255 * digit + 0.5).astype(np.uint8))[None]


def find_ink(grey: Grey) -> Grey | None:
    """How much each pixel stands out from the ground, 0 to 1; None where nothing does.

    The ground is a plane through the image's border, so that light may fall off to one side. Ink is whichever stands
    out further, darker or lighter pixels. A drawing keeps its grey levels; of a photograph the fainter half is taken
    for paper.
    """
    plane, spread = _ground(grey)
    difference = grey - plane
    lightest, darkest = max(0.0, float(difference.max())), max(0.0, float(-difference.min()))
    peak = max(lightest, darkest)
    if peak < LEAST_CONTRAST or peak < 6 * spread:
        return None
    low = max(3 * spread, 0.4 * peak) if spread > NOISE else 0.0
    full = 0.7 * peak if spread > NOISE else peak
    sign = 1 if lightest > darkest else -1
    return ((sign * difference - low) / (full - low)).clip(0, 1)


def normalise(ink: Grey, side: int = SIDE) -> Grey | None:
    """Ink of any size as a network's input [side, side]; None where there is no ink.

    A digit of MNIST comes out as it went in, but with its brightest pixel at 1.
    """
    rows, columns = (np.flatnonzero((ink > 0).any(axis=axis)) for axis in (1, 0))
    if not rows.size:
        return None
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scale = max(1, _round(side * BOX / SIDE)) / max(cut.shape)
    height, width = (max(1, _round(size * scale)) for size in cut.shape)
    digit = _resize(cut, height, width)
    top = _place(digit.sum(axis=1), side)
    left = _place(digit.sum(axis=0), side)
    image = np.zeros((side, side))
    image[top : top + height, left : left + width] = digit / digit.max()
    return image


def _ground(grey: Grey) -> tuple[Grey, float]:
    """The plane through the border by least squares, without what stands out of it, and the spread around it."""
    height, width = grey.shape
    depth = max(1, _round(0.03 * min(height, width)))
    y, x = np.ogrid[:height, :width]
    border = (x < depth) | (y < depth) | (x >= width - depth) | (y >= height - depth)
    values = np.sort(grey[border])
    middle = values[len(values) // 2]
    near = border & (abs(grey - middle) < 0.25)
    # The border is symmetric, so the level and the two slopes are found one by one.
    off = grey[near] - middle
    plane = np.full(grey.shape, middle + off.mean())
    for place in (x - (width - 1) / 2, y - (height - 1) / 2):
        at = np.broadcast_to(place, grey.shape)[near]
        squares = (at**2).sum()
        plane += place * ((at * off).sum() / squares if squares else 0.0)
    return plane, float(np.sqrt(((grey - plane)[near] ** 2).mean()))


def _resize(grey: Grey, height: int, width: int) -> Grey:
    """Means over areas where it shrinks, lines between pixels where it grows."""
    resized: Grey = _weights(grey.shape[0], height) @ grey @ _weights(grey.shape[1], width).T
    return resized


def _weights(size: int, new: int) -> Grey:
    """What each of `new` pixels is made of: [new, size], rows that add up to 1."""
    step = size / new
    index, old = np.arange(new)[:, None], np.arange(size)
    shares: Grey
    if step < 1:
        centre = ((index + 0.5) * step - 0.5).clip(0, size - 1)
        shares = (1 - abs(old - centre)).clip(0)
    else:
        begin = index * step
        end = np.minimum(begin + step, size)
        shares = (np.minimum(old + 1, end) - np.maximum(old, begin)).clip(0) / (end - begin)
    return shares


def _place(mass: Grey, side: int) -> int:
    """Where a digit's first row or column goes, so that its mass is in the middle and none of it outside."""
    centre = float((mass * np.arange(len(mass))).sum() / mass.sum())
    return min(max(side // 2 - _round(centre), 0), side - len(mass))


def _round(value: float) -> int:
    return math.floor(value + 0.5)  # as JavaScript's, where a half goes up
