"""Counter-based random numbers: each is a pure function of a seed and counters, with no state to save.

A key is an int64 tensor that stands for one stream. `key` hashes a seed and counters into one, `fold` derives
a further stream from it, and the draws below hash the key with the position of every number. The arithmetic
is that of splitmix64 on wrapping int64, so CPU and CUDA give the same numbers, and all of it can be captured
in a CUDA graph when the counters that change are tensors on the device.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from purecaps.errors import ConfigError

_WORD = (1 << 64) - 1


def _signed(word: int) -> int:
    """The int64 with the same 64 bits, since tensors have no unsigned arithmetic."""
    word &= _WORD
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = 0x9E3779B97F4A7C15
_FACTOR_1 = 0xBF58476D1CE4E5B9
_FACTOR_2 = 0x94D049BB133111EB
_STEP = _signed(_GOLDEN)
_SIGNED_1 = _signed(_FACTOR_1)
_SIGNED_2 = _signed(_FACTOR_2)


def key(seed: int | Tensor, *counters: int | Tensor, device: torch.device | str | None = None) -> Tensor:
    """The key of the stream that (seed, *counters) names.

    Args:
        seed: any integer, or an int64 tensor of them; taken modulo 2^64.
        counters: integers or int64 tensors, which broadcast with the seed: a step, a stream's number.
            Their order counts.
        device: where the key is to be; by default that of the tensors given, else the CPU.

    Returns:
        int64, 0-d where all are plain integers, else of the tensors' broadcast shape.
    """
    words = (seed, *counters)
    if device is None:
        device = next((word.device for word in words if isinstance(word, Tensor)), None)
    state, position = 0, 0
    # On the host up to the first tensor: that costs no kernel.
    while position < len(words) and not isinstance(words[position], Tensor):
        state = _mix_host(state ^ hash_counter(words[position]))
        position += 1
    # A fill, not a copy from the host, so that it can be captured in a CUDA graph.
    stream = torch.full((), _signed(state), dtype=torch.int64, device=device)
    for word in words[position:]:
        stream = fold(stream, word)
    return stream


def fold(key: Tensor, counter: int | Tensor) -> Tensor:
    """A further stream of `key`, one for each counter: `fold(key(seed, a), b)` is `key(seed, a, b)`."""
    if not isinstance(counter, Tensor):
        return _mix(key ^ _signed(hash_counter(counter)))
    if counter.dtype != torch.int64:
        raise ConfigError(f"counter: expected an integer or an int64 tensor, got {counter.dtype}")
    return _mix(key ^ _mix(counter + _STEP))


def uniform(key: Tensor, shape: Sequence[int]) -> Tensor:
    """Uniform float32 [*key.shape, *shape] in [0, 1): multiples of 2^-24, so exact on every device."""
    top = (_bits(key, shape) >> 40).bitwise_and_((1 << 24) - 1)
    return top.to(torch.float32).mul_(2.0**-24)


def randint(key: Tensor, low: int, high: int, shape: Sequence[int]) -> Tensor:
    """Uniform int64 [*key.shape, *shape] in [low, high).

    Args:
        key: int64 key or keys.
        low: the smallest number drawn.
        high: one more than the largest; at most low + 2^31, within which no number's probability is off by
            more than 2^-32.
        shape: how many numbers a key.
    """
    span = high - low
    if not 1 <= span <= 1 << 31:
        raise ConfigError(f"high: expected from low + 1 to low + 2^31 with low = {low}, got {high}")
    words = (_bits(key, shape) >> 32).bitwise_and_((1 << 32) - 1)
    return (words.mul_(span) >> 32).add_(low)


def permutation(key: Tensor, n: int) -> Tensor:
    """A random order of 0 .. n-1, int64 [*key.shape, n]."""
    # Stable, so that even two equal sort keys come out in the same order everywhere.
    return torch.argsort(_bits(key, (n,)).bitwise_and_((1 << 63) - 1), dim=-1, stable=True)


def _bits(key: Tensor, shape: Sequence[int]) -> Tensor:
    """64 random bits for each position: splitmix64 started at the key, int64 [*key.shape, *shape]."""
    positions = torch.arange(1, math.prod(shape) + 1, dtype=torch.int64, device=key.device)
    return _mix(key.unsqueeze(-1) + positions.mul_(_STEP)).view((*key.shape, *shape))


def hash_counter(counter: object) -> int:
    """What an integer counter is hashed to before it is folded into a key, in [0, 2^64)."""
    try:
        return _mix_host(operator.index(counter) + _GOLDEN)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"counter: expected an integer or an int64 tensor, got {counter!r}") from None


def _mix(x: Tensor) -> Tensor:
    """splitmix64's finaliser. Shifts of int64 copy the sign in; the masks take it out again."""
    x = (x >> 30).bitwise_and_((1 << 34) - 1).bitwise_xor_(x).mul_(_SIGNED_1)
    x = (x >> 27).bitwise_and_((1 << 37) - 1).bitwise_xor_(x).mul_(_SIGNED_2)
    return (x >> 31).bitwise_and_((1 << 33) - 1).bitwise_xor_(x)


def _mix_host(x: int) -> int:
    x &= _WORD
    x = ((x ^ (x >> 30)) * _FACTOR_1) & _WORD
    x = ((x ^ (x >> 27)) * _FACTOR_2) & _WORD
    return x ^ (x >> 31)
