# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""The gradient of the input capsules: an implicit matrix product over kernel positions and (o, p).

With stride s, an input pixel h is seen only by the kernel positions i with i d = h + padding (mod s). So pixels are
taken in s phases, one launch axis, each with the positions that reach it: no product with zeros of the stride's making.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton import memory
from purecaps.ops.triton.plan import plan
from purecaps.ops.triton.problem import Problem, as_logical, columns, map_constants, stride_z


@triton.jit
def phase_of(
    phase,
    SIZE: tl.constexpr,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    PAD: tl.constexpr,
    COMMON: tl.constexpr,
    INVERSE: tl.constexpr,
):
    """Along one axis: first pixel of the phase, how many it has, its first kernel position, how many reach it.

    i d = phase (mod s) has solutions only where gcd(d, s) divides the phase: every s/gcd-th position from the first.
    """
    step: tl.constexpr = STRIDE // COMMON
    first_pixel = (phase + (STRIDE - PAD % STRIDE)) % STRIDE
    pixels = (SIZE - first_pixel + STRIDE - 1) // STRIDE
    first = phase // COMMON * INVERSE % step
    positions = (KERNEL - first + step - 1) // step * (phase % COMMON == 0).to(tl.int32)
    return first_pixel, pixels, first, positions


@triton.jit(do_not_specialize=["B"])
def input_gradient_kernel(
    grad_v_ptr,
    w_ptr,
    grad_u_ptr,
    B,
    w_z,
    CN: tl.constexpr,
    N: tl.constexpr,
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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    column_blocks: tl.constexpr = (CN + COLUMNS - 1) // COLUMNS
    steps: tl.constexpr = (OP + INNER - 1) // INNER
    step_h: tl.constexpr = STRIDE_H // COMMON_H
    step_w: tl.constexpr = STRIDE_W // COMMON_W
    move_h: tl.constexpr = DILATION_H // COMMON_H
    move_w: tl.constexpr = DILATION_W // COMMON_W

    program = tl.program_id(0)
    phase_h = tl.program_id(1) // STRIDE_W
    phase_w = tl.program_id(1) % STRIDE_W
    z = tl.program_id(2).to(tl.int64)
    first_h, tall, first_i, positions_h = phase_of(phase_h, H, KH, STRIDE_H, PAD_H, COMMON_H, INVERSE_H)
    first_w, wide, first_j, positions_w = phase_of(phase_w, W, KW, STRIDE_W, PAD_W, COMMON_W, INVERSE_W)

    row = program // column_blocks * ROWS + tl.arange(0, ROWS)
    row_real = row < B * tall * wide * M
    m = row % M
    pixel = row // M
    line = pixel // tl.maximum(wide, 1)
    b = (line // tl.maximum(tall, 1)).to(tl.int64)
    h = first_h + line % tl.maximum(tall, 1) * STRIDE_H
    x = first_w + pixel % tl.maximum(wide, 1) * STRIDE_W
    # Where the phase has no position the division is not exact, and the loop below is empty.
    top = (h + PAD_H - first_i * DILATION_H) // STRIDE_H
    left = (x + PAD_W - first_j * DILATION_W) // STRIDE_W

    cn = program % column_blocks * COLUMNS + tl.arange(0, COLUMNS)
    column_real = cn < CN
    w_columns = w_ptr + z * w_z + (cn // N).to(tl.int64) * W_C + cn % N * W_N
    grad_v_rows = grad_v_ptr + ((z * B + b) * (OUT_H * OUT_W * M) + m) * OP

    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(positions_h * positions_w * steps):
        position = step // steps
        along_h = position // positions_w
        along_w = position % positions_w
        i = first_i + along_h * step_h
        j = first_j + along_w * step_w
        out_h = top - along_h * move_h
        out_w = left - along_w * move_w
        inside = row_real & (out_h >= 0) & (out_h < OUT_H) & (out_w >= 0) & (out_w < OUT_W)
        op = step % steps * INNER + tl.arange(0, INNER)
        at = grad_v_rows + (out_h * OUT_W + out_w) * (M * OP)
        w_rows = i * W_I + j * W_J + op // P * W_O + op % P * W_P
        grad_mask = inside[:, None]
        w_mask = column_real[None, :]
        if OP % INNER != 0:
            grad_mask = grad_mask & (op < OP)[None, :]
            w_mask = w_mask & (op < OP)[:, None]
        grad_v = tl.load(at[:, None] + op[None, :], mask=grad_mask, other=0.0)
        kernel = tl.load(w_columns[None, :] + w_rows[:, None], mask=w_mask, other=0.0)
        total = tl.dot(grad_v, kernel, total, input_precision=PRECISION)

    grad_u_rows = grad_u_ptr + (((z * B + b) * H + h) * W + x) * (M * CN) + m * CN
    out = total.to(grad_u_ptr.dtype.element_ty)
    tl.store(grad_u_rows[:, None] + cn[None, :], out, mask=row_real[:, None] & column_real[None, :])


def launch_input_gradient(grad_v: Tensor, w: Tensor, problem: Problem, dtype: torch.dtype, precision: str) -> Tensor:
    """The gradient of u [Z, B, C, H, W, m, n], in memory as rows of (C, n).

    Args:
        grad_v: gradient of the convolution's output, contiguous rows [Z, B, H', W', m, O, p].
        w: capsule kernels [Z, kh, kw, C, O, n, p], any strides.
        problem: the sizes.
        dtype: of the result.
        precision: of float32 products, "tf32" or "ieee".
    """
    grad_u = memory.empty(
        (problem.Z, problem.B, problem.H, problem.W, problem.m, problem.C, problem.n), dtype, grad_v.device
    )
    if grad_u.numel():
        tile = plan(problem).inputs
        (down, across), dilation = problem.geometry.stride, problem.geometry.dilation
        inputs = columns(problem.C, problem.n, (w.stride(3), w.stride(5)))
        outputs = columns(problem.O, problem.p, (w.stride(4), w.stride(6)))
        common = (math.gcd(dilation[0], down), math.gcd(dilation[1], across))
        most = problem.B * triton.cdiv(problem.H, down) * triton.cdiv(problem.W, across) * problem.m
        blocks = triton.cdiv(most, tile.rows) * triton.cdiv(problem.C * problem.n, tile.columns)
        input_gradient_kernel[(blocks, down * across, problem.Z)](
            grad_v,
            w,
            grad_u,
            problem.B,
            stride_z(w),
            CN=problem.C * problem.n,
            N=inputs.inner,
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
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            INNER=tile.inner,
            PRECISION=precision,
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return as_logical(grad_u)


def _inverse(value: int, modulus: int) -> int:
    return pow(value, -1, modulus) if modulus > 1 else 0
