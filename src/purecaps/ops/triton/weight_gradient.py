# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""The gradient of the capsule kernels: a product summed over all pixels, in a fixed order.

The sum is split among programs, each of which writes its part, and a second kernel adds the parts up. No atomics: the
same inputs give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton import memory
from purecaps.ops.triton.activation_gradient import gradient_arguments, load_gradient
from purecaps.ops.triton.plan import plan
from purecaps.ops.triton.problem import Problem, constants, memory_order, stride_z


@triton.jit(do_not_specialize=["pixels", "steps"])
def weight_gradient_kernel(
    u_ptr,
    grad_v_ptr,
    parts_ptr,
    y_ptr,
    r_ptr,
    grad_y_ptr,
    grad_r_ptr,
    pixels,
    steps,
    u_z,
    part_split,
    part_z,
    grad_y_z,
    slope,
    C: tl.constexpr,
    N: tl.constexpr,
    O: tl.constexpr,
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
    U_B: tl.constexpr,
    U_C: tl.constexpr,
    U_H: tl.constexpr,
    U_W: tl.constexpr,
    U_M: tl.constexpr,
    U_N: tl.constexpr,
    W_I: tl.constexpr,
    W_J: tl.constexpr,
    W_C: tl.constexpr,
    W_O: tl.constexpr,
    W_N: tl.constexpr,
    W_P: tl.constexpr,
    M_PAD: tl.constexpr,
    P_PAD: tl.constexpr,
    NORM_ROWS: tl.constexpr,
    NORM_COLUMNS: tl.constexpr,
    LENGTH_ROWS: tl.constexpr,
    LENGTH_COLUMNS: tl.constexpr,
    G_B: tl.constexpr,
    G_O: tl.constexpr,
    G_H: tl.constexpr,
    G_W: tl.constexpr,
    G_M: tl.constexpr,
    G_P: tl.constexpr,
    HAS_GRAD_Y: tl.constexpr,
    HAS_GRAD_R: tl.constexpr,
    FUSED: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """FUSED computes the activation's gradient from y and r; KEEP also writes it, for the input's gradient."""
    width: tl.constexpr = C * N
    length: tl.constexpr = KH * KW * width
    capsules: tl.constexpr = COLUMNS // P_PAD
    column_blocks: tl.constexpr = (O + capsules - 1) // capsules
    block_pixels: tl.constexpr = INNER // M_PAD

    program = tl.program_id(0)
    split = tl.program_id(1)
    z = tl.program_id(2).to(tl.int64)
    first_capsule = program % column_blocks * capsules

    k = program // column_blocks * ROWS + tl.arange(0, ROWS)
    k_real = k < length
    i = k // width // KW
    j = k // width % KW
    c = k % width // N
    n = k % N
    u_columns = i * (DILATION_H * U_H) + j * (DILATION_W * U_W) + c * U_C + n * U_N

    column = tl.arange(0, COLUMNS)
    o = first_capsule + column // P_PAD
    p = column % P_PAD
    column_real = (o < O) & (p < P)

    row = tl.arange(0, INNER)
    m = row % M_PAD
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(steps):
        first_pixel = (split * steps + step) * block_pixels
        pixel = first_pixel + row // M_PAD
        row_real = (pixel < pixels) & (m < M)
        line = pixel // OUT_W
        top = line % OUT_H * STRIDE_H - PAD_H
        left = pixel % OUT_W * STRIDE_W - PAD_W
        corner = (line // OUT_H).to(tl.int64) * U_B + top.to(tl.int64) * U_H + left.to(tl.int64) * U_W
        u_rows = u_ptr + z * u_z + corner + m.to(tl.int64) * U_M
        u_mask = row_real[:, None] & k_real[None, :]
        if PAD_H > 0 or PAD_W > 0:
            h = top[:, None] + (i * DILATION_H)[None, :]
            x = left[:, None] + (j * DILATION_W)[None, :]
            u_mask = u_mask & (h >= 0) & (h < H) & (x >= 0) & (x < W)
        seen = tl.load(u_rows[:, None] + u_columns[None, :], mask=u_mask, other=0.0)
        if FUSED:
            exact, offsets, mask = load_gradient(
                y_ptr, r_ptr, grad_y_ptr, grad_r_ptr, first_pixel, first_capsule, pixels, z,
                grad_y_z, slope, OUT_H, OUT_W, O, P, M, M_PAD, P_PAD, NORM_ROWS, NORM_COLUMNS,
                LENGTH_ROWS, LENGTH_COLUMNS, G_B, G_O, G_H, G_W, G_M, G_P, HAS_GRAD_Y, HAS_GRAD_R, INNER, COLUMNS,
            )  # fmt: skip
            grad_v = exact.to(u_ptr.dtype.element_ty)
            if KEEP:
                tl.store(grad_v_ptr + offsets, grad_v, mask=mask & (program < column_blocks))
        else:
            grad_v_rows = grad_v_ptr + ((z * pixels + pixel) * M + m) * (O * P)
            mask = row_real[:, None] & column_real[None, :]
            grad_v = tl.load(grad_v_rows[:, None] + (o * P + p)[None, :], mask=mask, other=0.0)
        total = tl.dot(tl.trans(seen), grad_v, total, input_precision=PRECISION)

    part = parts_ptr + split.to(tl.int64) * part_split + z * part_z
    at_row = i.to(tl.int64) * W_I + j.to(tl.int64) * W_J + c.to(tl.int64) * W_C + n.to(tl.int64) * W_N
    at_column = o.to(tl.int64) * W_O + p.to(tl.int64) * W_P
    out = total.to(parts_ptr.dtype.element_ty)
    tl.store(part + at_row[:, None] + at_column[None, :], out, mask=k_real[:, None] & column_real[None, :])


@triton.jit
def sum_parts_kernel(parts_ptr, sum_ptr, count, splits, NUMBERS: tl.constexpr, PARTS: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    total = tl.zeros((NUMBERS,), dtype=tl.float32)
    for first in range(0, splits, PARTS):
        part = first + tl.arange(0, PARTS)
        mask = (part < splits)[:, None] & (at < count)[None, :]
        block = tl.load(parts_ptr + part.to(tl.int64)[:, None] * count + at[None, :], mask=mask, other=0.0)
        total += tl.sum(block, axis=0)
    tl.store(sum_ptr + at, total.to(sum_ptr.dtype.element_ty), mask=at < count)


def launch_weight_gradient(
    u: Tensor,
    w: Tensor,
    problem: Problem,
    precision: str,
    grad_v: Tensor,
    activation: tuple[Tensor, Tensor, Tensor | None, Tensor | None, float] | None = None,
    *,
    keep: bool = False,
) -> Tensor:
    """The gradient of w [Z, kh, kw, C, O, g, n, p], in w's memory layout.

    Args:
        u: input capsules [Z, B, C, H, W, m, n], any strides.
        w: capsule kernels with g = 1, for their layout and dtype.
        problem: the sizes.
        precision: of float32 products, "tf32" or "ieee".
        grad_v: gradient of the convolution's output, rows [Z, B, H', W', m, O, p]; written instead of read where
            `activation` is given and `keep` is set.
        activation: (y, r, grad_y, grad_r, slope) to compute that gradient from.
        keep: whether to leave the computed gradient in `grad_v`.
    """
    order = memory_order(w)
    stored = memory.empty(tuple(w.shape[axis] for axis in order), w.dtype, w.device)
    grad_w = stored.permute(*(order.index(axis) for axis in range(w.dim())))
    if not stored.numel():
        return grad_w
    if problem.pixels == 0:
        return grad_w.zero_()
    chosen = plan(problem)
    tile = chosen.weights
    steps = triton.cdiv(problem.pixels, tile.inner // problem.m_pad)
    each = triton.cdiv(steps, chosen.splits)
    splits = triton.cdiv(steps, each)
    parts = stored if splits == 1 else memory.empty((splits, stored.numel()), torch.float32, w.device)
    if activation is None:
        pointers: tuple[Tensor, ...] = (grad_v, grad_v, grad_v, grad_v)
        grad_y_z, slope = 0, 1.0
        names = ("G_B", "G_O", "G_H", "G_W", "G_M", "G_P", "HAS_GRAD_Y", "HAS_GRAD_R")
        arguments = dict.fromkeys(names, 0)
    else:
        y, r, grad_y, grad_r, slope = activation
        pointers, grad_y_z, arguments = gradient_arguments(y, r, grad_y, grad_r, problem)
    tiles = triton.cdiv(problem.inner, tile.rows) * triton.cdiv(problem.O, tile.columns // problem.p_pad)
    weight_gradient_kernel[(tiles, splits, problem.Z)](
        u,
        grad_v,
        parts,
        *pointers,
        problem.pixels,
        each,
        stride_z(u),
        0 if splits == 1 else stored.numel(),
        stride_z(grad_w),
        grad_y_z,
        slope,
        **constants(u, grad_w.squeeze(5), problem),
        **arguments,
        FUSED=activation is not None,
        KEEP=keep,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        INNER=tile.inner,
        PRECISION=precision,
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if splits > 1:
        numbers = 128
        sum_parts_kernel[(triton.cdiv(stored.numel(), numbers),)](
            parts, stored, stored.numel(), splits, NUMBERS=numbers, PARTS=16, num_warps=4
        )
    return grad_w
