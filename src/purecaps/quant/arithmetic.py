"""The integer arithmetic of quantised networks, on int64 tensors: what the exported C and ONNX do, bit for bit.

A capsule's numbers before squash are fixed-point integers t with `FRACTION` bits after the point. The squash factor
(1 - exp(-r)) / r is read from a table by r^2, which is the integer sum of t^2: no root, no exponential, no division.
The table has `SEGMENTS` straight pieces in each of `OCTAVES` octaves of r^2, from (1/32)^2 to 16^2. Shorter capsules
take its first value, which is wrong by less than an eighth of an output step; longer ones are brought into its last two
octaves, where the factor is 1/r to a part in 3,000, by quartering r^2 and halving the factor.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FRACTION = 12
LIMIT = (1 << 20) - 1
SCORE_LIMIT = (1 << 31) - 1
SLOPE_BITS = 15
FACTOR_BITS = 15
GAIN_BITS = 14
PIXEL_BITS = 16

OCTAVES = 18
SEGMENT_BITS = 3
SEGMENTS = 1 << SEGMENT_BITS
BLEND_BITS = 8
ENTRIES = OCTAVES * SEGMENTS + 1

# Sums of squares below FIRST come before the table, from BEYOND on after it. A sum is shifted down until these bits are
# left of it: a leading one, those that choose the piece, those that say where on it.
FIRST_BITS = 2 * FRACTION - 10
BEYOND_BITS = FIRST_BITS + OCTAVES
KEPT_BITS = 1 + SEGMENT_BITS + BLEND_BITS
# A capsule may have this many numbers, each up to LIMIT, and its sum of squares is still exact in float64.
MOST_NUMBERS = (1 << 53) // LIMIT**2
MOST_HALVINGS = (53 - BEYOND_BITS + 1) // 2


def knots() -> Tensor:
    """The lengths r that the tables have entries for: float64 [ENTRIES]."""
    octave, piece = torch.arange(ENTRIES) // SEGMENTS, torch.arange(ENTRIES) % SEGMENTS
    squares = torch.ldexp(1 + piece.double() / SEGMENTS, octave + FIRST_BITS - 2 * FRACTION)
    return squares.sqrt()


def squash_table() -> Tensor:
    """(1 - exp(-r)) / r at the knots, times 2^15: int16 [ENTRIES]."""
    r = knots()
    return (-torch.expm1(-r) / r * (1 << FACTOR_BITS)).round().to(torch.int16)


def length_table() -> Tensor:
    """1 - exp(-r), the length after squash, at the knots, times 2^15 - 1: int16 [ENTRIES]."""
    return (-torch.expm1(-knots()) * ((1 << FACTOR_BITS) - 1)).round().to(torch.int16)


def round_shift(value: Tensor, bits: int | Tensor) -> Tensor:
    """value / 2^bits, rounded to the nearest integer, halves away from zero; bits from 1 to 62."""
    half = 1 << (bits - 1) if isinstance(bits, int) else torch.ones_like(bits) << (bits - 1)
    return value.sign() * ((value.abs() + half) >> bits)


def negative_multiplier(multiplier: Tensor, slope: int) -> Tensor:
    """What negative accumulators are multiplied with: leaky ReLU, at no cost.

    Args:
        multiplier: what positive ones are multiplied with.
        slope: the slope times 2^15.
    """
    return (multiplier * slope + (1 << (SLOPE_BITS - 1))) >> SLOPE_BITS


def rescale(accumulator: Tensor, multiplier: Tensor, slope: int, shift: int) -> Tensor:
    """Leaky ReLU of an accumulator, as fixed point t, saturated at +-LIMIT."""
    factor = torch.where(accumulator < 0, negative_multiplier(multiplier, slope), multiplier)
    return round_shift(accumulator * factor, shift).clamp(-LIMIT, LIMIT)


def squash_factor(squares: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """The factor of capsules with these sums of t^2, times 2^15, and how often it is to be halved yet."""
    halvings = _at_least(squares, range(BEYOND_BITS, 54, 2))
    index, blend = _find(squares >> (2 * halvings))
    return _between(table, index, blend), halvings


def squashed_length(squares: Tensor, table: Tensor) -> Tensor:
    """The length after squash of capsules with these sums of t^2, times 2^15 - 1."""
    index, blend = _find(squares.clamp(max=(1 << BEYOND_BITS) - 1))
    short = (table[0] * squares) >> FIRST_BITS  # squares rise from zero here, where the length itself would be wanted
    return torch.where(squares < 1 << FIRST_BITS, short, _between(table, index, blend))


def squash(t: Tensor, squares: Tensor, table: Tensor, gain: int, gain_shift: int, zero: int) -> Tensor:
    """Squashed numbers in steps of the output's scale, between -zero and 255 - zero.

    Args:
        t: fixed-point numbers of the capsules.
        squares: their sums of t^2, which broadcast against t.
        table: `squash_table()`, as int64.
        gain: 1/scale of the output as a number of 15 bits.
        gain_shift: how far the product is to be shifted down.
        zero: the output's zero point.
    """
    factor, halvings = squash_factor(squares, table)
    scaled = (factor * gain + (1 << (GAIN_BITS - 1))) >> GAIN_BITS
    return round_shift(t * scaled, gain_shift + halvings).clamp(-zero, 255 - zero)


def as_multiplier(value: float) -> tuple[int, int]:
    """(M, s) with M of 15 bits so that M / 2^s is nearest to `value`, which is above 0."""
    fraction, exponent = math.frexp(value)  # fraction in [1/2, 1)
    multiplier = round(fraction * (1 << 15))
    if multiplier == 1 << 15:
        return 1 << 14, 14 - exponent
    return multiplier, 15 - exponent


def _at_least(value: Tensor, powers: range) -> Tensor:
    """How many of 2^power are at most `value`."""
    bounds = torch.tensor([1 << power for power in powers], dtype=torch.int64, device=value.device)
    return torch.bucketize(value, bounds, right=True)


def _find(squares: Tensor) -> tuple[Tensor, Tensor]:
    """The piece of the table that holds a sum of squares below 2^BEYOND_BITS, and where on it, of 2^8."""
    shift = _at_least(squares, range(KEPT_BITS, BEYOND_BITS))
    kept = squares >> shift
    index = (shift - (FIRST_BITS - KEPT_BITS + 1)) * SEGMENTS + (kept >> BLEND_BITS) - SEGMENTS
    before = squares < 1 << FIRST_BITS
    return index.masked_fill(before, 0), (kept & ((1 << BLEND_BITS) - 1)).masked_fill(before, 0)


def _between(table: Tensor, index: Tensor, blend: Tensor) -> Tensor:
    left, right = table[index], table[index + 1]
    return left + round_shift((right - left) * blend, BLEND_BITS)
