"""The capsule block, convolution with leaky ReLU and squash, as fused Triton kernels with their backward pass.

Triton is imported on the first call, never on import. With TRITON_INTERPRET=1 set before that, the kernels run on the
CPU in Triton's interpreter: slow, for tests.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops.autocast import autocast_dtype
from purecaps.ops.geometry import Block, Geometry, Pair
from purecaps.ops.triton import autograd, stack
from purecaps.ops.triton.problem import MOST_ROWS, Problem, power_of_two, problem_of

__all__ = ["caps_block", "caps_blocks", "caps_conv2d", "refuses"]

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
    squashed: Tensor = y.squeeze(0).unsqueeze(4)  # not y[0], whose gradient is a copy into zeros
    return squashed


def caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry, precision: str = "auto") -> Tensor:
    """As `reference.caps_conv2d`, by the same kernels without the activation; arguments as for `caps_block`."""
    u, w = _autocast(u, w)
    _check(u, w, geometry, None, precision)
    v: Tensor = autograd.conv_forward(u.squeeze(4)[None], w[None], _flat(geometry), precision).squeeze(0).unsqueeze(4)
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
    automatic = autocast_dtype(u.device.type)
    if automatic is not None:
        dtypes = {automatic}
    if not dtypes <= set(DTYPES):
        return f"dtype {u.dtype}, only float32, float16 and bfloat16 are covered"
    if u.shape[4] != 1:
        return f"g = {u.shape[4]}, only g = 1 is covered"
    m, p = u.shape[5], w.shape[6]
    if _capsule_too_large(m, p):
        return (
            f"capsules of {m}x{p}, only m up to {MOST_M}, p up to {MOST_P} and {MOST_NUMBERS} numbers, "
            "each padded to a power of two, are covered"
        )
    if norm_of(chunk, m, p) is None:
        return (
            f"squash_chunk = {chunk}, which in capsules of {m}x{p} is neither rows nor parts of a row, by powers of two"
        )
    return _too_large(problem_of(u.squeeze(4)[None], w.squeeze(4)[None], geometry), u, w)


def pays(u: Tensor) -> bool:
    """Whether the kernels are the fastest way on u's device and in its precision, so that "auto" should try them.

    In float32 that conv2d would not round to TF32 they have to do without tensor cores.
    """
    if not u.is_cuda:
        return False
    halved = u.dtype in (torch.float16, torch.bfloat16) or autocast_dtype("cuda") is not None
    return halved or autograd.product_precision("auto") == "tf32"


def caps_blocks(
    u: Tensor, weights: Sequence[Tensor], layers: Sequence[Block], precision: str = "auto"
) -> tuple[Tensor, Tensor] | None:
    """Blocks in turn as one operator (stack.py): the last one's capsules [B, O, H', W', g, m, p], and their lengths
    [B, O, H', W'] before squashing. None where it does not cover them; single blocks may cover more.

    Args:
        u: input capsules [B, C, H, W, g, m, n] of the first block.
        weights: each block's kernel [kh, kw, C, O, g, n, p]; products are made in u's dtype.
        layers: the rest of each block.
        precision: as for `caps_block`.
    """
    u = u.to(autocast_dtype(u.device.type) or u.dtype)
    steps = run_of(u, weights, layers)
    if steps is None:
        return None
    y, r = stack.caps_stack(u.squeeze(4)[None], [w[None] for w in weights], steps, precision)
    return y.squeeze(0).unsqueeze(4), r.squeeze(0).flatten(-2).squeeze(-1)


def run_of(u: Tensor, weights: Sequence[Tensor], layers: Sequence[Block]) -> list[stack.Layer] | None:
    """What the operator asks for each block; None where it does not cover them."""
    if missing(u.device.type) or u.dtype not in DTYPES or layers[-1].squash_chunk is not None:
        return None
    if any(layer.squash_gradient != "exact" for layer in layers):
        return None
    B, C, H, W, _, m, n = u.shape
    found: list[stack.Layer] = []
    chunk = None
    for w, layer in zip(weights, layers, strict=True):
        kh, kw, in_caps, O, g, w_n, p = w.shape
        # Capsules are refolded between blocks; where several sit at a position that would move data.
        if w.dtype not in DTYPES or g != 1 or in_caps != C or (m * n) % w_n or (C > 1 and w_n != n):
            return None
        m, n = m * n // w_n, w_n
        norm, below = norm_of(layer.squash_chunk, m, p), norm_of(chunk, m, n)
        first = not found
        if norm is None or _capsule_too_large(m, p) or not (first or stack.fits(below, m, n)):
            return None
        found.append(stack.Layer(layer.geometry, norm, (0, 0) if first else below or (0, 0), layer.negative_slope))
        H, W = layer.geometry.out_size((H, W), (kh, kw))
        if H < 1 or W < 1 or max(B * H * W * m, w.numel()) >= MOST_ROWS:
            return None
        C, n, chunk = O, p, layer.squash_chunk
    return found


def _capsule_too_large(m: int, p: int) -> bool:
    return m > MOST_M or p > MOST_P or power_of_two(m) * max(16, power_of_two(p)) > MOST_NUMBERS


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
    dtype = autocast_dtype(u.device.type)
    return (u, w) if dtype is None else (u.to(dtype), w.to(dtype))


def _flat(geometry: Geometry) -> list[int]:
    return [*geometry.stride, *geometry.padding, *geometry.dilation]
