from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from purecaps.data.random import _bits, fold, key, permutation, randint, uniform
from purecaps.errors import ConfigError

INT64 = st.integers(min_value=-(2**63), max_value=2**63 - 1)


def assert_evenly_spread(bins: Tensor, count: int) -> None:
    """A chi-square test at 4.5 standard deviations: for fixed seeds it passes for good or never."""
    seen = torch.bincount(bins.flatten(), minlength=count).double()
    assert len(seen) == count
    expected = bins.numel() / count
    statistic = ((seen - expected) ** 2 / expected).sum().item()
    assert abs(statistic - (count - 1)) < 4.5 * (2 * (count - 1)) ** 0.5


def assert_uncorrelated(a: Tensor, b: Tensor) -> None:
    correlation = torch.corrcoef(torch.stack((a, b)).double())[0, 1].item()
    assert abs(correlation) < 4.5 / len(a) ** 0.5


def test_bits_are_the_published_splitmix64_sequence() -> None:
    words = [word % 2**64 for word in _bits(torch.tensor(1234567), (5,)).tolist()]
    assert words == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_numbers_stay_the_same_from_version_to_version() -> None:
    # A run resumed under a newer version must see the same data.
    assert key(0, 1, 2).item() == -512434005686423370
    assert permutation(key(7), 9).tolist() == [3, 5, 7, 6, 4, 1, 8, 2, 0]


@given(INT64, INT64)
@settings(deadline=None, max_examples=60)
def test_host_and_tensor_paths_give_the_same_key(seed: int, counter: int) -> None:
    expected = key(seed, counter, 5)
    tensors = (torch.tensor(seed), torch.tensor(counter))
    assert torch.equal(key(tensors[0], counter, 5), expected)
    assert torch.equal(key(seed, tensors[1], 5), expected)
    assert torch.equal(key(seed, tensors[1], torch.tensor(5)), expected)
    assert torch.equal(fold(fold(key(seed), counter), 5), expected)
    assert torch.equal(fold(fold(key(seed), tensors[1]), 5), expected)


def test_a_tensor_of_seeds_gives_the_streams_of_each() -> None:
    seeds = torch.tensor([3, -8, 2**40])
    keys = key(seeds, 11)
    assert keys.shape == (3,)
    for row, seed in enumerate(seeds.tolist()):
        alone = key(seed, 11)
        assert torch.equal(keys[row], alone)
        assert torch.equal(uniform(keys, (4, 5))[row], uniform(alone, (4, 5)))
        assert torch.equal(randint(keys, -3, 9, (7,))[row], randint(alone, -3, 9, (7,)))
        assert torch.equal(permutation(keys, 13)[row], permutation(alone, 13))


def test_keys_differ_for_every_seed_counter_and_order_of_counters() -> None:
    grid = torch.arange(-150, 150)
    keys = key(grid[:, None], grid[None, :])
    assert keys.unique().numel() == 300 * 300
    assert key(1, 2) != key(1, 2, 0)
    assert key(0) != key(0, 0)


def test_one_flipped_bit_of_a_counter_flips_half_of_the_key() -> None:
    counters = torch.arange(500)
    places = 1 << torch.arange(63)
    for flipped in (
        key(9, counters) ^ key(9, counters ^ places[:, None]),
        key(counters, 9) ^ key(counters ^ places[:, None], 9),
    ):
        bits = (flipped[..., None] >> torch.arange(64)) & 1  # [place flipped, counter, bit of the key]
        share = bits.double().mean(1)
        assert (share - 0.5).abs().max() < 5.5 * 0.5 / 500**0.5


@pytest.mark.parametrize("seed", [0, 1, 2, -1, 2**63])
def test_uniform_fills_the_unit_interval_evenly(seed: int) -> None:
    values = uniform(key(seed, 3), (400, 655))
    assert values.dtype == torch.float32
    assert values.min() >= 0
    assert values.max() < 1
    whole = (values.double() * 2**24).long()
    assert torch.equal(whole.double() / 2**24, values.double())
    assert_evenly_spread(whole >> 16, 256)
    assert_evenly_spread(whole & 255, 256)
    assert_evenly_spread((whole[:, :-1] >> 20) * 16 + (whole[:, 1:] >> 20), 256)


def test_streams_of_neighbouring_seeds_and_counters_are_independent() -> None:
    streams = [key(5), key(6), key(5, 0), key(5, 1), key(6, 0), fold(key(5, 1), 0)]
    draws = [uniform(stream, (50_021,)) for stream in streams]
    for a, b in itertools.combinations(draws, 2):
        assert_uncorrelated(a, b)
        assert_uncorrelated(a[1:], b[:-1])


def test_first_numbers_of_successive_steps_are_even() -> None:
    first = uniform(key(4, torch.arange(100_003)), (1,))
    assert_evenly_spread((first * 64).long(), 64)
    assert_uncorrelated(first[1:, 0], first[:-1, 0])


def test_a_number_depends_on_its_position_alone() -> None:
    long = uniform(key(2), (35,))
    assert torch.equal(uniform(key(2), (5, 7)).flatten(), long)
    assert torch.equal(uniform(key(2), (9,)), long[:9])
    assert uniform(key(2), (0, 3)).shape == (0, 3)
    assert uniform(key(2), ()).shape == ()


@pytest.mark.parametrize(("low", "high"), [(-2, 3), (0, 1), (10, 73)])
def test_randint_draws_every_number_evenly_and_no_other(low: int, high: int) -> None:
    values = randint(key(8), low, high, (60_007,))
    assert values.dtype == torch.int64
    if high - low == 1:
        assert values.unique().tolist() == [low]
    else:
        assert_evenly_spread(values - low, high - low)


def test_randint_reaches_over_its_widest_span() -> None:
    values = randint(key(8), -5, 2**31 - 5, (1001,))
    assert values.min() >= -5
    assert values.max() < 2**31 - 5
    assert values.max() > 2**31 * 0.99


@pytest.mark.parametrize(("low", "high"), [(3, 3), (3, 2), (0, 2**31 + 1)])
def test_randint_refuses_a_span_it_cannot_draw_from(low: int, high: int) -> None:
    with pytest.raises(ConfigError, match=rf"low = {low}, got {high}"):
        randint(key(0), low, high, (1,))


@pytest.mark.parametrize("n", [0, 1, 2, 63, 5003])
def test_permutation_holds_every_number_once(n: int) -> None:
    order = permutation(key(3, n), n)
    assert order.dtype == torch.int64
    assert torch.equal(order.sort().values, torch.arange(n))


def test_all_orders_of_a_permutation_are_as_likely() -> None:
    orders = permutation(key(1, torch.arange(24_000)), 4)
    numbers = {order: number for number, order in enumerate(itertools.permutations(range(4)))}
    assert_evenly_spread(torch.tensor([numbers[tuple(order)] for order in orders.tolist()]), 24)


@pytest.mark.parametrize("counter", [1.5, "2", None, torch.tensor(1.0), torch.tensor(1, dtype=torch.int32)])
def test_counters_that_are_no_integers_are_refused(counter: object) -> None:
    with pytest.raises(ConfigError, match="counter: expected an integer or an int64 tensor, got"):
        key(0, counter)  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_the_numbers_of_the_cpu() -> None:
    cpu, cuda = key(5, 6), key(5, 6, device="cuda")
    assert cuda.item() == cpu.item()
    assert key(5, torch.tensor(6, device="cuda")).item() == cpu.item()
    assert torch.equal(uniform(cuda, (1001,)).cpu(), uniform(cpu, (1001,)))
    assert torch.equal(randint(cuda, -2, 9, (1001,)).cpu(), randint(cpu, -2, 9, (1001,)))
    assert torch.equal(permutation(cuda, 50_001).cpu(), permutation(cpu, 50_001))
