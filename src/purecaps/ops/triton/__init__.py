"""The capsule block, convolution with leaky ReLU and squash, as fused Triton kernels with their backward pass.

Triton is imported on the first call, never on import. With TRITON_INTERPRET=1 set before that, the kernels run on the
CPU in Triton's interpreter: slow, for tests.
"""

from __future__ import annotations

import functools
import importlib.util
import os

import torch
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops.geometry import Geometry, Pair
from purecaps.ops.triton import autograd
from purecaps.ops.triton.problem import MOST_ROWS, Problem, power_of_two, problem_of

__all__ = ["caps_block", "caps_conv2d", "refuses"]

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# One program holds whole capsules, padded to powers of two, in registers and their operands in shared memory.
MOST_M, MOST_P, MOST_NUMBERS = 128, 256, 8192
MOST_NUMBERS_REACHED = 2**31


def caps_block(
    u: Tensor,
    w: Tensor,
    geometry: Geometry,
    negative_slope: float,
    chunk: int | None,
    precision: str = "auto",
) -> Tensor:
    """As `reference.caps_block`, in one kernel; the backward pass keeps u, w, the output and one length a capsule.

    Args:
        u: input capsules [B, C, H, W, g, m, n] with g = 1, any strides; rows of contiguous (C, n) are the fastest.
        w: capsule kernel [kh, kw, C, O, g, n, p].
        geometry: stride, padding and dilation.
        negative_slope: leaky ReLU's.
        chunk: None, or how many consecutive numbers of a capsule are squashed together.
        precision: of float32 products: "tf32", "ieee", or "auto" for what conv2d does on a GPU.
    """
    u, w = _autocast(u, w)
    _check(u, w, geometry, chunk, precision)
    norm = norm_of(chunk, u.shape[5], w.shape[6])
    assert norm is not None  # `refuses` saw to it
    options = (_flat(geometry), list(norm), float(negative_slope), precision)
    y, _ = autograd.block_forward(u.squeeze(4)[None], w[None], *options)
    squashed: Tensor = y[0].unsqueeze(4)
    return squashed


def caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry, precision: str = "auto") -> Tensor:
    """As `reference.caps_conv2d`, by the same kernels without the activation; arguments as for `caps_block`."""
    u, w = _autocast(u, w)
    _check(u, w, geometry, None, precision)
    v: Tensor = autograd.conv_forward(u.squeeze(4)[None], w[None], _flat(geometry), precision)[0].unsqueeze(4)
    return v


def refuses(u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None = None) -> str | None:
    """Why these kernels cannot take a problem; None where they can.

    Args:
        u: input capsules [B, C, H, W, g, m, n].
        w: capsule kernel [kh, kw, C, O, g, n, p].
        geometry: stride, padding and dilation.
        chunk: as for `caps_block`.
    """
    lacking = missing(u.device.type)
    if lacking is not None:
        return lacking
    dtypes = {u.dtype, w.dtype}
    if torch.is_autocast_enabled(u.device.type):
        dtypes = {torch.get_autocast_dtype(u.device.type)}
    if not dtypes <= set(DTYPES):
        return f"dtype {u.dtype}, only float32, float16 and bfloat16 are covered"
    if u.shape[4] != 1:
        return f"g = {u.shape[4]}, only g = 1 is covered"
    m, p = u.shape[5], w.shape[6]
    if m > MOST_M or p > MOST_P or power_of_two(m) * max(16, power_of_two(p)) > MOST_NUMBERS:
        return (
            f"capsules of {m}x{p}, only m up to {MOST_M}, p up to {MOST_P} and {MOST_NUMBERS} numbers, "
            "each padded to a power of two, are covered"
        )
    if norm_of(chunk, m, p) is None:
        return (
            f"squash_chunk = {chunk}, which in capsules of {m}x{p} is neither rows nor parts of a row, by powers of two"
        )
    return _too_large(problem_of(u.squeeze(4)[None], w.squeeze(4)[None], geometry), u, w)


def norm_of(chunk: int | None, m: int, p: int) -> Pair | None:
    """Rows and columns that one squash spans; None where a tile cannot hold such chunks side by side."""
    if chunk is None or chunk == m * p:
        return (m, p)
    if chunk < p:
        fits = p % chunk == 0 and power_of_two(chunk) == chunk
        return (1, chunk) if fits else None
    rows = chunk // p
    fits = chunk % p == 0 and m % rows == 0 and power_of_two(rows) == rows
    return (rows, p) if fits else None


def missing(device_type: str) -> str | None:
    """What this machine lacks for the kernels; None where they can run."""
    # The device first: this is asked before every layer, and looking for a package takes a while.
    interpreted = device_type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if device_type != "cuda" and not interpreted:
        return f"device {device_type}, only cuda is covered"
    if not _installed():
        return "Triton is not installed"
    if interpreted:
        return None
    major, minor = torch.cuda.get_device_capability()
    return None if major >= 8 else f"compute capability {major}.{minor}, at least 8.0 is needed"


@functools.cache
def _installed() -> bool:
    return importlib.util.find_spec("triton") is not None


# What torch.compiler.assume_constant_result sets; that function imports all of torch._dynamo, and with it Triton.
missing._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _too_large(problem: Problem, u: Tensor, w: Tensor) -> str | None:
    # A traced program may run with any batch size, so there it is left to the operator.
    if not torch.compiler.is_compiling() and problem.rows >= MOST_ROWS:
        return f"{problem.rows} rows of capsules, fewer than 2^31 are covered"
    (down, across) = problem.geometry.dilation
    reach = (problem.kh - 1) * down * u.stride(2) + (problem.kw - 1) * across * u.stride(3)
    reach += (problem.C - 1) * u.stride(1) + (problem.n - 1) * u.stride(6)
    if max(reach, w.numel()) >= MOST_NUMBERS_REACHED:
        return "a kernel that reaches over 2^31 numbers of u or w"
    return None


def _check(u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None, precision: str) -> None:
    if precision not in autograd.PRECISIONS:
        raise ConfigError(f"precision: expected one of {', '.join(autograd.PRECISIONS)}, got {precision!r}")
    reason = refuses(u, w, geometry, chunk)
    if reason is not None:
        raise ConfigError(f'impl: "triton" does not cover this problem ({reason}); use "auto" or "conv"')


def _autocast(u: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    if not torch.is_autocast_enabled(u.device.type):
        return u, w
    dtype = torch.get_autocast_dtype(u.device.type)
    return u.to(dtype), w.to(dtype)


def _flat(geometry: Geometry) -> list[int]:
    return [*geometry.stride, *geometry.padding, *geometry.dilation]
