"""The integer arithmetic against exact fractions and against the functions it stands for."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from purecaps.quant import arithmetic

TABLE = arithmetic.squash_table().long()
LENGTHS = arithmetic.length_table().long()
ONE = 1 << arithmetic.FRACTION


def nearest(value: Fraction) -> int:
    """The nearest integer, halves away from zero."""
    whole = int(abs(value) + Fraction(1, 2))
    return whole if value >= 0 else -whole


@given(st.integers(-(2**50), 2**50), st.integers(1, 45))
def test_shifting_rounds_to_the_nearest_and_halves_away_from_zero(value, bits):
    expected = nearest(Fraction(value, 2**bits))
    assert int(arithmetic.round_shift(torch.tensor(value), bits)) == expected
    assert int(arithmetic.round_shift(torch.tensor(value), torch.tensor(bits))) == expected


@pytest.mark.parametrize(("value", "expected"), [(3, 2), (-3, -2), (1, 1), (-1, -1), (0, 0), (5, 3), (-5, -3)])
def test_halves_go_away_from_zero(value, expected):
    assert int(arithmetic.round_shift(torch.tensor(value), 1)) == expected


@given(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**15 - 1), st.integers(1, 40))
def test_rescaling_is_leaky_relu_in_fixed_point(accumulator, multiplier, shift):
    slope = 3277
    factor = multiplier if accumulator >= 0 else nearest(Fraction(multiplier * slope, 2**15))
    expected = nearest(Fraction(accumulator * factor, 2**shift))
    expected = max(-arithmetic.LIMIT, min(arithmetic.LIMIT, expected))
    got = arithmetic.rescale(torch.tensor(accumulator), torch.tensor(multiplier), slope, shift)
    assert int(got) == expected


def squares_of(r: torch.Tensor) -> torch.Tensor:
    return (r * ONE).square().round().long()


def test_the_factor_is_squashs_to_a_sixth_of_a_percent_from_a_thirty_second_on():
    r = torch.logspace(-5, 9, 20_011, base=2, dtype=torch.float64)[:-1]
    factor, halvings = arithmetic.squash_factor(squares_of(r), TABLE)
    got = factor / 2.0**arithmetic.FACTOR_BITS / 2.0**halvings
    exact = -torch.expm1(-r) / r
    assert float((got / exact - 1).abs().max()) < 1 / 600
    assert int(halvings.max()) == 5  # from a length of 16 on, the factor halves as the length doubles


def test_the_factor_of_short_capsules_is_off_by_less_than_an_eighth_of_a_step():
    r = torch.linspace(0, 1 / 32, 1001, dtype=torch.float64)
    factor, halvings = arithmetic.squash_factor(squares_of(r), TABLE)
    exact = torch.where(r > 0, -torch.expm1(-r) / r.clamp(min=1e-9), 1.0)
    assert int(halvings.max()) == 0
    assert float(((factor / 2.0**arithmetic.FACTOR_BITS - exact) * r).abs().max()) < 1 / 255 / 8


def test_lengths_never_fall_as_capsules_grow_and_end_below_one():
    squares = torch.cat([torch.arange(40_000), torch.logspace(4, 15, 30_011, dtype=torch.float64).long().sort().values])
    got = arithmetic.squashed_length(squares.sort().values, LENGTHS)
    assert bool((got.diff() >= 0).all())
    assert int(got[0]) == 0
    assert int(got[-1]) <= 2**15 - 1


def test_lengths_are_those_after_squash():
    r = torch.linspace(1 / 32, 12, 5003, dtype=torch.float64)
    got = arithmetic.squashed_length(squares_of(r), LENGTHS) / (2.0**15 - 1)
    assert float((got + torch.expm1(-r)).abs().max()) < 1e-3


@pytest.mark.parametrize("octave", range(arithmetic.FIRST_BITS, arithmetic.BEYOND_BITS))
def test_the_tables_entries_are_met_exactly(octave):
    for piece in range(arithmetic.SEGMENTS):
        squares = torch.tensor((arithmetic.SEGMENTS + piece) << (octave - arithmetic.SEGMENT_BITS))
        entry = (octave - arithmetic.FIRST_BITS) * arithmetic.SEGMENTS + piece
        assert int(arithmetic.squash_factor(squares, TABLE)[0]) == int(TABLE[entry])


def test_the_largest_sum_of_squares_is_still_inside_the_arithmetic():
    squares = torch.tensor(arithmetic.MOST_NUMBERS * arithmetic.LIMIT**2)
    assert int(squares) < 2**53
    factor, halvings = arithmetic.squash_factor(squares, TABLE)
    assert 0 < int(factor) < 2**15
    assert int(halvings) <= arithmetic.MOST_HALVINGS


@given(st.floats(1e-12, 1e4))
def test_a_multiplier_of_fifteen_bits_is_nearest(value):
    multiplier, shift = arithmetic.as_multiplier(value)
    assert 2**14 <= multiplier < 2**15
    assert abs(multiplier / 2.0**shift / value - 1) <= 2**-15


def test_a_squashed_capsule_saturates_at_the_ends_of_its_range():
    t = torch.tensor([4 * ONE, -4 * ONE, 0])
    gain, shift = arithmetic.as_multiplier(1000.0)
    down = arithmetic.FRACTION + arithmetic.FACTOR_BITS - arithmetic.GAIN_BITS + shift
    got = arithmetic.squash(t, t.square().sum(), TABLE, gain, down, zero=40)
    assert got.tolist() == [215, -40, 0]
