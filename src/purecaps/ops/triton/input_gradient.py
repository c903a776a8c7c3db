# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""The gradient of the input capsules: an implicit matrix product over kernel positions and (o, p).

With stride s, an input pixel h is seen only by the kernel positions i with i d = h + padding (mod s). So pixels are
taken in s phases, one launch axis, each with the positions that reach it: no product with zeros of the stride's making.

With a span of several pixels columns are (s, c, n), neighbours of one phase side by side. Position k of the first sees
the output pixel that position k + s of the one s further on sees, so one sum over all that any of them is seen by, with
zeros for the weights of positions that there are not.

Inside a run of layers the input is what the layer below wrote. A program holds whole capsules of it, so the gradient
goes on through that layer's squash and leaky ReLU as an epilogue, and no other kernel has to read it for that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.geometry import Pair
from purecaps.ops.triton import memory
from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device
from purecaps.ops.triton.parts import (
    activation_gradient,
    divided,
    length_positions,
    quotient,
    remainder,
    tile_columns,
    tile_rows,
)
from purecaps.ops.triton.plan import plan, row_blocks
from purecaps.ops.triton.problem import Problem, as_logical, as_rows, columns, map_constants, power_of_two, stride_z


@dataclass(frozen=True)
class Below:
    """The activation that made u, to differentiate through.

    Args:
        u: the input capsules [Z, B, C, H, W, m, n], in memory as rows of (C, n).
        r: their lengths before squashing, one for each squash.
        slope: leaky ReLU's.
        norm: rows and columns of u's capsules that one squash spans.
    """

    u: Tensor
    r: Tensor
    slope: float
    norm: Pair


@triton.jit
def phase_of(
    phase,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    COMMON: tl.constexpr,
    INVERSE: tl.constexpr,
):
    """Along one axis: first pixel of the phase, its first kernel position, how many positions reach it.

    i d = phase (mod s) has solutions only where gcd(d, s) divides the phase: every s/gcd-th position from the first.
    """
    step: tl.constexpr = STRIDE // COMMON
    _, first_pixel = divided(phase + (STRIDE - PAD % STRIDE), STRIDE, 2 * STRIDE, 1)
    of_common, rest = divided(phase, COMMON, STRIDE, 1)
    _, first = divided(of_common * INVERSE, step, STRIDE * STRIDE, 1)
    positions = quotient(KERNEL - first + step - 1, step, KERNEL + step, 1) * (rest == 0).to(tl.int32)
    return first_pixel, first, positions


@triton.jit
def reached(top, positions, MOVE: tl.constexpr, SIZE: tl.constexpr, OUT: tl.constexpr, ONE: tl.constexpr):
    """Which of a phase's positions see a pixel within the output map: the first of them, and how many.

    Position k sees the output pixel top - k MOVE, and top is less than SIZE. For tiles of several pixels all positions:
    masks do the rest.
    """
    if ONE:
        if MOVE & (MOVE - 1) == 0:
            first = tl.maximum((top - OUT + MOVE) // MOVE, 0)
            last = tl.minimum(top // MOVE, positions - 1)
        else:
            first = quotient(tl.maximum(top - OUT + MOVE, 0), MOVE, SIZE + MOVE, 1)
            last = tl.minimum(quotient(tl.maximum(top, 0), MOVE, SIZE, 1), positions - 1)
        # Division rounds towards zero: before the first pixel nothing is seen.
        return first, tl.where(top < 0, 0, tl.maximum(last - first + 1, 0))
    return 0, positions


@triton.jit(do_not_specialize=["B"])
def input_gradient_kernel(
    grad_v_ptr,
    w_ptr,
    grad_u_ptr,
    u_ptr,
    r_ptr,
    B,
    w_z,
    slope,
    C: tl.constexpr,
    N: tl.constexpr,
    W_N_SIZE: tl.constexpr,
    OP: tl.constexpr,
    P: tl.constexpr,
    M: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr,
    COMMON_H: tl.constexpr,
    COMMON_W: tl.constexpr,
    INVERSE_H: tl.constexpr,
    INVERSE_W: tl.constexpr,
    W_I: tl.constexpr,
    W_J: tl.constexpr,
    W_C: tl.constexpr,
    W_O: tl.constexpr,
    W_N: tl.constexpr,
    W_P: tl.constexpr,
    M_PAD: tl.constexpr,
    N_PAD: tl.constexpr,
    NORM_ROWS: tl.constexpr,
    NORM_COLUMNS: tl.constexpr,
    LENGTH_ROWS: tl.constexpr,
    LENGTH_COLUMNS: tl.constexpr,
    ACTIVATED: tl.constexpr,
    IMAGES: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """ACTIVATED goes on through the activation that made u; columns are whole capsules then, N_PAD wide each."""
    width: tl.constexpr = C * N
    of_pixel: tl.constexpr = COLUMNS // SPAN
    capsules: tl.constexpr = of_pixel // N_PAD
    column_blocks: tl.constexpr = (C + capsules - 1) // capsules
    # No column is padding: the compiler does not find that out by itself, and would load and store number by number.
    whole: tl.constexpr = C % capsules == 0 and N == N_PAD
    # Kernel positions that one step sums: several where (o, p) is short.
    pack: tl.constexpr = INNER // OP if SPAN > 1 and OP < INNER and INNER % OP == 0 else 1
    steps: tl.constexpr = (OP + INNER - 1) // INNER
    wide: tl.constexpr = ((W + STRIDE_W - 1) // STRIDE_W + SPAN - 1) // SPAN
    block_pixels: tl.constexpr = ROWS // (IMAGES * M_PAD)
    one_pixel: tl.constexpr = block_pixels == 1
    step_h: tl.constexpr = STRIDE_H // COMMON_H
    step_w: tl.constexpr = STRIDE_W // COMMON_W
    move_h: tl.constexpr = DILATION_H // COMMON_H
    move_w: tl.constexpr = DILATION_W // COMMON_W

    program = tl.program_id(0)
    phase_h, phase_w = divided(tl.program_id(1), STRIDE_W, STRIDE_H * STRIDE_W, 1)
    z = tl.program_id(2).to(tl.int64)
    first_h, first_i, positions_h = phase_of(phase_h, KH, STRIDE_H, PAD_H, COMMON_H, INVERSE_H)
    first_w, first_j, positions_w = phase_of(phase_w, KW, STRIDE_W, PAD_W, COMMON_W, INVERSE_W)
    image_blocks = (B + IMAGES - 1) // IMAGES
    first_capsule = program % column_blocks * capsules
    first_image = program // column_blocks % image_blocks * IMAGES
    first_pixel = program // column_blocks // image_blocks * block_pixels

    pixel, b, m = tile_rows(first_pixel, first_image, ROWS, IMAGES, M_PAD)
    h = first_h + pixel // wide * STRIDE_H
    x = first_w + pixel % wide * (SPAN * STRIDE_W)
    row_real = (b < B) & (m < M) & (h < H) & (x < W)
    # Where the phase has no position the division is not exact, and the loop below is empty or sums zeros.
    top = (h + PAD_H - first_i * DILATION_H) // STRIDE_H
    left = (x + PAD_W - first_j * DILATION_W) // STRIDE_W + (SPAN - 1)
    from_h, count_h = reached(top, positions_h, move_h, H + PAD_H + STRIDE_H, OUT_H, one_pixel)
    from_w, count_w = reached(left, positions_w + (SPAN - 1), move_w, W + PAD_W + SPAN * STRIDE_W, OUT_W, one_pixel)

    s, c, n = tile_columns(first_capsule, COLUMNS, SPAN, N_PAD)
    column_real = (c < C) & (n < N)
    cn = c * N + n
    w_columns = w_ptr + z * w_z
    if (column_blocks * capsules - 1) * N + N_PAD <= 2 * W_N_SIZE:  # divided by a comparison
        w_columns = w_columns + (cn // W_N_SIZE).to(tl.int64) * W_C + cn % W_N_SIZE * W_N
    else:
        run: tl.constexpr = min(W_N_SIZE & -W_N_SIZE, of_pixel) if N == N_PAD else 1
        w_c = quotient(cn, W_N_SIZE, width + COLUMNS, run)
        w_columns = w_columns + w_c.to(tl.int64) * W_C + remainder(cn, w_c, W_N_SIZE) * W_N
    image = (z * B + b) * (OUT_H * OUT_W)
    grad_v_rows = grad_v_ptr + ((image + top * OUT_W + left) * M + m) * OP

    rows = (((z * B + b) * H + h) * W + x) * (M * width) + m * width
    u_columns = s * (STRIDE_W * M * width) + cn
    if N == N_PAD:
        u_columns = tl.max_contiguous(tl.multiple_of(u_columns, N), N)
    offsets = rows[:, None] + u_columns[None, :]
    mask = row_real[:, None]
    if not whole:
        mask = mask & column_real[None, :]
    if SPAN > 1:
        mask = mask & ((x + 0 * b)[:, None] + (s * STRIDE_W)[None, :] < W)
    wait_for_inputs(AHEAD)
    if ACTIVATED:
        at_pixel, at_image, part = tile_rows(first_pixel, first_image, ROWS // NORM_ROWS, IMAGES, M_PAD // NORM_ROWS)
        at_h = first_h + at_pixel // wide * STRIDE_H
        at_x = first_w + at_pixel % wide * (SPAN * STRIDE_W) + 0 * at_image
        at, known = length_positions(
            (z * B + at_image) * (H * W) + at_h * W + at_x, (at_image < B) & (at_h < H) & (at_x < W), part,
            first_capsule, C, N_PAD, LENGTH_ROWS, LENGTH_COLUMNS, COLUMNS, NORM_COLUMNS, W - at_x, SPAN, STRIDE_W,
        )  # fmt: skip
        y = tl.load(u_ptr + offsets, mask=mask, other=0.0).to(tl.float32)
        r = tl.load(r_ptr + at, mask=known, other=0.0)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    across = (count_w + pack - 1) // pack
    across_share = 1.0 / tl.maximum(across, 1)
    for step in range(count_h * across * steps):
        if one_pixel:
            position = step // steps
            along_h = from_h + position // across
            along_w = from_w + position % across * pack
            op = step % steps * INNER + tl.arange(0, INNER)
        else:  # all positions, and the compiler knows how few they are; see `quotient`
            position, piece = divided(step, steps, KH * (KW + SPAN) * steps, 1)
            along_h = ((position.to(tl.float32) + 0.5) * across_share).to(tl.int32)
            along_w = (position - along_h * across) * pack
            op = piece * INNER + tl.arange(0, INNER)
        if pack > 1:
            along_w = along_w + op // OP
            op = op % OP
        i = first_i + along_h * step_h
        back = (along_h * move_h * OUT_W + along_w * move_w) * (M * OP)
        inside = row_real
        if not one_pixel:
            out_h = top - along_h * move_h
            inside = inside & (out_h >= 0) & (out_h < OUT_H)
            if pack == 1:
                out_w = left - along_w * move_w
                inside = inside & (out_w >= 0) & (out_w < OUT_W)
        grad_mask = inside[:, None]
        w_mask = column_real[None, :]
        o, p = divided(op, P, OP + INNER, min(P & -P, INNER))
        w_rows = i * W_I + first_j * W_J + o * W_O + p * W_P
        if SPAN > 1:
            own = (along_w + 0 * op)[:, None] + (s - (SPAN - 1))[None, :]
            w_mask = w_mask & (own >= 0) & (own < positions_w)
            w_at = w_columns[None, :] + w_rows[:, None] + own * (step_w * W_J)
        else:
            w_at = w_columns[None, :] + (w_rows + along_w * (step_w * W_J))[:, None]
        if pack > 1:
            grad_mask = grad_mask & (along_w < from_w + count_w)[None, :]
            if not one_pixel:
                out_w = left[:, None] - (along_w * move_w)[None, :]
                grad_mask = grad_mask & (out_w >= 0) & (out_w < OUT_W)
        elif OP % INNER != 0:
            grad_mask = grad_mask & (op < OP)[None, :]
            w_mask = w_mask & (op < OP)[:, None]
        grad_v = tl.load(grad_v_rows[:, None] + (op - back)[None, :], mask=grad_mask, other=0.0)
        kernel = tl.load(w_at, mask=w_mask, other=0.0)
        total = tl.dot(grad_v, kernel, total, input_precision=PRECISION)

    if ACTIVATED:
        # Nothing but a layout: with `total` in it, y is brought to the registers that the tensor cores leave their sums
        # in, and all that follows is done there. Else each step converts a whole tile through shared memory (twice the
        # registers and four times the barriers). Where `total` is not finite, neither was the result without this.
        y = y + total * 0.0
        exact: tl.constexpr = PRECISION == "ieee" and grad_v_ptr.dtype.element_ty == tl.float32
        total = activation_gradient(
            y, total, r, r, slope, True, False, ROWS, COLUMNS, NORM_ROWS, NORM_COLUMNS, exact
        )  # fmt: skip
    tl.store(grad_u_ptr + offsets, total.to(grad_u_ptr.dtype.element_ty), mask=mask)


@on_its_device
def launch_input_gradient(
    grad_v: Tensor, w: Tensor, problem: Problem, dtype: torch.dtype, precision: str, below: Below | None = None
) -> Tensor:
    """The gradient of u, as rows [Z, B, H, W, m, C, n]; with `below`, of what u was before its activation.

    Args:
        grad_v: gradient of the convolution's output, contiguous rows [Z, B, H', W', m, O, p].
        w: capsule kernels [Z, kh, kw, C, O, n, p], any strides.
        problem: the sizes.
        dtype: of the result.
        precision: of float32 products, "tf32" or "ieee".
        below: the activation that made u.
    """
    grad_u = memory.empty(
        (problem.Z, problem.B, problem.H, problem.W, problem.m, problem.C, problem.n), dtype, grad_v.device
    )
    if not grad_u.numel():
        return grad_u
    tile = plan(problem).inputs
    (down, across), dilation = problem.geometry.stride, problem.geometry.dilation
    inputs = columns(problem.C, problem.n, (w.stride(3), w.stride(5)))
    outputs = columns(problem.O, problem.p, (w.stride(4), w.stride(6)))
    common = (math.gcd(dilation[0], down), math.gcd(dilation[1], across))
    # Without an activation columns need not be whole capsules: each (c, n) is one by itself.
    capsules, width = (problem.C * problem.n, 1) if below is None else (problem.C, problem.n)
    n_pad = power_of_two(width)
    m_pad = problem.m_pad
    images = tile.images(problem)
    pixels = triton.cdiv(problem.H, down) * triton.cdiv(triton.cdiv(problem.W, across), tile.span)
    blocks = row_blocks(problem.B, pixels, m_pad, tile.rows, images)
    blocks *= triton.cdiv(capsules, tile.columns // tile.span // n_pad)
    input_gradient_kernel[(blocks, down * across, problem.Z)](
        grad_v,
        w,
        grad_u,
        grad_u if below is None else as_rows(below.u).contiguous(),  # hooks on saved tensors may have copied them
        grad_u if below is None else as_rows(below.r).contiguous(),
        problem.B,
        stride_z(w),
        1.0 if below is None else below.slope,
        C=capsules,
        N=width,
        W_N_SIZE=inputs.inner,
        OP=problem.O * problem.p,
        P=outputs.inner,
        M=problem.m,
        **map_constants(problem),
        COMMON_H=common[0],
        COMMON_W=common[1],
        INVERSE_H=_inverse(dilation[0] // common[0], down // common[0]),
        INVERSE_W=_inverse(dilation[1] // common[1], across // common[1]),
        W_I=w.stride(1),
        W_J=w.stride(2),
        W_C=inputs.strides[0][0],
        W_O=outputs.strides[0][0],
        W_N=inputs.strides[0][1],
        W_P=outputs.strides[0][1],
        M_PAD=m_pad,
        N_PAD=n_pad,
        **_norm_constants(problem, below),
        ACTIVATED=below is not None,
        IMAGES=images,
        SPAN=tile.span,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        INNER=tile.inner,
        PRECISION=precision,
        **launched_ahead(grad_v.device),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return grad_u


def gradient_of_input(grad_v: Tensor, w: Tensor, problem: Problem, dtype: torch.dtype, precision: str) -> Tensor:
    """As `launch_input_gradient`, in the logical order [Z, B, C, H, W, m, n]."""
    return as_logical(launch_input_gradient(grad_v, w, problem, dtype, precision))


def _norm_constants(problem: Problem, below: Below | None) -> dict[str, int]:
    if below is None:
        return dict.fromkeys(("NORM_ROWS", "NORM_COLUMNS", "LENGTH_ROWS", "LENGTH_COLUMNS"), 1)
    rows, across = below.norm
    return {
        "NORM_ROWS": power_of_two(rows),
        "NORM_COLUMNS": power_of_two(across),
        "LENGTH_ROWS": problem.m // rows,
        "LENGTH_COLUMNS": problem.n // across,
    }


def _inverse(value: int, modulus: int) -> int:
    return pow(value, -1, modulus) if modulus > 1 else 0
