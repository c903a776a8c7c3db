# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""The gradient of the capsule kernels: a product summed over all pixels, in a fixed order.

The sum is split among programs, each of which writes its part, and a second kernel adds the parts up (sum_parts.py). No
atomics: the same inputs give the same bits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton import memory
from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device
from purecaps.ops.triton.parts import tile_rows
from purecaps.ops.triton.plan import plan, row_blocks
from purecaps.ops.triton.problem import Problem, constants, stride_z
from purecaps.ops.triton.sum_parts import sum_parts
from purecaps.ops.triton.tile import images_in


@triton.jit(do_not_specialize=["B", "steps"])
def weight_gradient_kernel(
    u_ptr,
    grad_v_ptr,
    parts_ptr,
    B,
    steps,
    u_z,
    part_split,
    part_z,
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
    IMAGES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
):
    width: tl.constexpr = C * N
    length: tl.constexpr = KH * KW * width
    capsules: tl.constexpr = COLUMNS // P_PAD
    column_blocks: tl.constexpr = (O + capsules - 1) // capsules
    pixels: tl.constexpr = OUT_H * OUT_W
    block_pixels: tl.constexpr = INNER // (IMAGES * M_PAD)

    program = tl.program_id(0)
    split = tl.program_id(1)
    z = tl.program_id(2).to(tl.int64)
    first_capsule = program % column_blocks * capsules

    k = program // column_blocks * ROWS + tl.arange(0, ROWS)
    k_real = k < length
    i = k // width // KW
    j = k // width % KW
    c = k // N % C  # not k % width // N: k % width has few bits, and so had its quotient; see `quotient` in parts.py
    n = k % N
    u_columns = i * (DILATION_H * U_H) + j * (DILATION_W * U_W) + c * U_C + n * U_N

    column = tl.arange(0, COLUMNS)
    o = first_capsule + column // P_PAD
    p = column % P_PAD
    column_real = (o < O) & (p < P)

    image_blocks = (B + IMAGES - 1) // IMAGES
    wait_for_inputs(AHEAD)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for step in range(steps):
        block = split * steps + step
        first_pixel = block // image_blocks * block_pixels
        pixel, b, m = tile_rows(first_pixel, block % image_blocks * IMAGES, INNER, IMAGES, M_PAD)
        row_real = (b < B) & (m < M) & (pixel < pixels)
        top = pixel // OUT_W * STRIDE_H - PAD_H
        left = pixel % OUT_W * STRIDE_W - PAD_W
        corner = top.to(tl.int64) * U_H + left.to(tl.int64) * U_W
        u_rows = u_ptr + z * u_z + b.to(tl.int64) * U_B + m.to(tl.int64) * U_M + corner
        u_mask = k_real[:, None] & row_real[None, :]
        if PAD_H > 0 or PAD_W > 0:
            h = (i * DILATION_H)[:, None] + (top + 0 * b)[None, :]
            x = (j * DILATION_W)[:, None] + (left + 0 * b)[None, :]
            u_mask = u_mask & (h >= 0) & (h < H) & (x >= 0) & (x < W)
        seen = tl.load(u_rows[None, :] + u_columns[:, None], mask=u_mask, other=0.0)
        grad_v_rows = grad_v_ptr + (((z * B + b) * pixels + pixel) * M + m) * (O * P)
        mask = row_real[:, None] & column_real[None, :]
        grad_v = tl.load(grad_v_rows[:, None] + (o * P + p)[None, :], mask=mask, other=0.0)
        total = tl.dot(seen, grad_v, total, input_precision=PRECISION)

    part = parts_ptr + split.to(tl.int64) * part_split + z * part_z
    at_row = i.to(tl.int64) * W_I + j.to(tl.int64) * W_J + c.to(tl.int64) * W_C + n.to(tl.int64) * W_N
    at_column = o.to(tl.int64) * W_O + p.to(tl.int64) * W_P
    out = total.to(parts_ptr.dtype.element_ty)
    tl.store(part + at_row[:, None] + at_column[None, :], out, mask=k_real[:, None] & column_real[None, :])


@on_its_device
def launch_weight_gradient(u: Tensor, grad_v: Tensor, grad_w: Tensor, problem: Problem, precision: str) -> Tensor:
    """Writes the gradient of w [Z, kh, kw, C, O, g, n, p] with g = 1.

    Args:
        u: input capsules [Z, B, C, H, W, m, n], any strides.
        grad_v: gradient of the convolution's output, rows [Z, B, H', W', m, O, p].
        grad_w: memory for the result, as `memory.empty_as` makes it.
        problem: the sizes.
        precision: of float32 products, "tf32" or "ieee".
    """
    count = grad_w.numel()
    if not count or problem.pixels == 0:
        return grad_w.zero_()
    chosen = plan(problem)
    tile = chosen.weights
    images = images_in(tile.inner, problem)
    steps = row_blocks(problem.B, problem.out[0] * problem.out[1], problem.m_pad, tile.inner, images)
    each = triton.cdiv(steps, chosen.splits)
    splits = triton.cdiv(steps, each)
    parts = grad_w if splits == 1 else memory.empty((splits, count), torch.float32, grad_w.device)
    tiles = triton.cdiv(problem.inner, tile.rows) * triton.cdiv(problem.O, tile.columns // problem.p_pad)
    sizes = constants(u, grad_w.squeeze(5), problem)
    weight_gradient_kernel[(tiles, splits, problem.Z)](
        u,
        grad_v,
        parts,
        problem.B,
        each,
        stride_z(u),
        0 if splits == 1 else count,
        stride_z(grad_w),
        **{name: sizes[name] for name in sizes if name not in _OF_LENGTHS},
        IMAGES=images,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        INNER=tile.inner,
        PRECISION=precision,
        **launched_ahead(u.device),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if splits > 1:
        sum_parts(parts, grad_w)
    return grad_w


_OF_LENGTHS = ("NORM_ROWS", "NORM_COLUMNS", "LENGTH_ROWS", "LENGTH_COLUMNS")
