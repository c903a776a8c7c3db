# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""The forward pass: an implicit matrix product whose epilogue is leaky ReLU and squash.

Rows are (pixel, image, m) with m fastest and padded to a power of two, columns are (o, p) with p padded likewise, and
the sum runs over (i, j, c, n). So one program holds whole capsules, and their norms need no second pass. A program of a
large batch stays at one pixel: where to read is then a scalar and a stride. Sizes and strides are compile-time
constants: index arithmetic becomes shifts, and loads are as wide as the layout allows.

With a span of several pixels columns are (s, o, p), neighbours in a row of the map side by side, and the sum runs over
all that any of them sees: a kernel position j of the first is j - s stride of the one s further on, and the weights of
positions that a pixel does not see are zeros.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton import memory
from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device
from purecaps.ops.triton.parts import (
    divided,
    length_and_factor,
    length_positions,
    quotient,
    remainder,
    spread_capsules,
    sum_capsules,
    tile_columns,
    tile_rows,
)
from purecaps.ops.triton.plan import plan, row_blocks
from purecaps.ops.triton.problem import Problem, as_logical, constants, stride_z


@triton.jit(do_not_specialize=["B"])
def forward_kernel(
    u_ptr,
    w_ptr,
    y_ptr,
    r_ptr,
    B,
    u_z,
    w_z,
    slope,
    scale,
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
    IMAGES: tl.constexpr,
    SPAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INNER: tl.constexpr,
    ACTIVATE: tl.constexpr,
    BYTES: tl.constexpr,
    PRECISION: tl.constexpr,
    AHEAD: tl.constexpr,
):
    width: tl.constexpr = C * N
    seen_w: tl.constexpr = KW + (SPAN - 1) * STRIDE_W
    length: tl.constexpr = KH * seen_w * width
    of_pixel: tl.constexpr = COLUMNS // SPAN
    capsules: tl.constexpr = of_pixel // P_PAD
    column_blocks: tl.constexpr = (O + capsules - 1) // capsules
    # No column is padding: the compiler does not find that out by itself, and would store number by number.
    whole: tl.constexpr = O % capsules == 0 and P == P_PAD
    padded: tl.constexpr = PAD_H > 0 or PAD_W > 0 or OUT_W % SPAN != 0
    # Where one step never leaves a kernel position, the position is a scalar and costs nothing.
    one_position: tl.constexpr = width % INNER == 0
    # Divisions as the compiler makes them, where they were seen right on a GPU.
    tried: tl.constexpr = KH == 3 and KW == 3 and (width & (width - 1) == 0 or (one_position and C == 1))
    run: tl.constexpr = min(N & -N, INNER)  # so many numbers in a row are at one position
    ragged: tl.constexpr = length % INNER != 0
    # CapsConv2d lays its kernel out so; said outright, the loads come out wide.
    one_run: tl.constexpr = C == 1 and W_J == N * W_N and W_I == KW * W_J and SPAN == 1

    wide: tl.constexpr = (OUT_W + SPAN - 1) // SPAN
    pixels: tl.constexpr = OUT_H * wide
    block_pixels: tl.constexpr = ROWS // (IMAGES * M_PAD)

    image_blocks = (B + IMAGES - 1) // IMAGES
    program = tl.program_id(0)
    z = tl.program_id(1).to(tl.int64)
    first_capsule = program % column_blocks * capsules
    first_image = program // column_blocks % image_blocks * IMAGES
    first_pixel = program // column_blocks // image_blocks * block_pixels

    pixel, b, m = tile_rows(first_pixel, first_image, ROWS, IMAGES, M_PAD)
    row_real = (b < B) & (m < M) & (pixel < pixels)
    top = pixel // wide * STRIDE_H - PAD_H
    left = pixel % wide * (SPAN * STRIDE_W) - PAD_W
    corner = top.to(tl.int64) * U_H + left.to(tl.int64) * U_W
    u_rows = u_ptr + z * u_z + b.to(tl.int64) * U_B + m.to(tl.int64) * U_M + corner

    s, o, p = tile_columns(first_capsule, COLUMNS, SPAN, P_PAD)
    column_real = (o < O) & (p < P)
    w_columns = w_ptr + z * w_z + o.to(tl.int64) * W_O + p * W_P

    wait_for_inputs(AHEAD)
    total = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, length, INNER):
        k = start + tl.arange(0, INNER)
        if tried:
            position = start // width if one_position else k // width
            i = position // seen_w
            j = position % seen_w
            c = k % width // N
            n = k % N
        elif one_position:
            position = quotient(start, width, length, 1)
            i, j = divided(position, seen_w, KH * seen_w, 1)
            cn = remainder(k, position, width)
            if C == 1:
                c = 0
                n = cn
            else:
                c = quotient(cn, N, width, run)
                n = k % N if N & (N - 1) == 0 else cn - c * N
        else:
            position = quotient(k, width, length + INNER, run)
            i = quotient(position, seen_w, KH * seen_w + INNER, run)
            cn = remainder(k, position, width)
            c = quotient(cn, N, width, run)
            # Of k, not of cn: of a remainder's remainder the compiler does not see that it is contiguous.
            n = k % N if N & (N - 1) == 0 else cn - c * N
            j = remainder(position, i, seen_w)
        u_mask = row_real[:, None]
        w_mask = column_real[None, :]
        if ragged:
            u_mask = u_mask & (k < length)[None, :]
            w_mask = w_mask & (k < length)[:, None]
        if padded:
            if one_position:
                h = top + i * DILATION_H
                x = left + j * DILATION_W
                u_mask = (row_real & (h >= 0) & (h < H) & (x >= 0) & (x < W))[:, None]
            else:
                h = (top + 0 * b)[:, None] + (i * DILATION_H)[None, :]
                x = (left + 0 * b)[:, None] + (j * DILATION_W)[None, :]
                u_mask = u_mask & (h >= 0) & (h < H) & (x >= 0) & (x < W)
        u_offset = i * (DILATION_H * U_H) + j * (DILATION_W * U_W) + c * U_C + n * U_N
        w_offset = k * W_N if one_run else i * W_I + j * W_J + c * W_C + n * W_N
        w_at = w_columns[None, :] + w_offset[:, None]
        if SPAN > 1:
            own = (j + 0 * k)[:, None] - (s * STRIDE_W)[None, :]
            w_at -= (s * (STRIDE_W * W_J))[None, :]
            w_mask = w_mask & (own >= 0) & (own < KW)
        seen = tl.load(u_rows[:, None] + u_offset[None, :], mask=u_mask, other=0.0)
        if BYTES:
            seen = seen.to(w_ptr.dtype.element_ty)
        kernel = tl.load(w_at, mask=w_mask, other=0.0)
        total = tl.dot(seen, kernel, total, input_precision=PRECISION)

    if BYTES:
        total = total * scale
    if ACTIVATE:
        total = tl.where(total > 0, total, total * slope)
        exact: tl.constexpr = PRECISION == "ieee" and y_ptr.dtype.element_ty == tl.float32
        r, factor = length_and_factor(sum_capsules(total * total, ROWS, COLUMNS, NORM_ROWS, NORM_COLUMNS), exact)
        total = total * spread_capsules(factor, ROWS, COLUMNS, NORM_ROWS, NORM_COLUMNS)
        at, image, part = tile_rows(first_pixel, first_image, ROWS // NORM_ROWS, IMAGES, M_PAD // NORM_ROWS)
        x = at % wide * SPAN + 0 * image
        offsets, mask = length_positions(
            (z * B + image) * (OUT_H * OUT_W) + at // wide * OUT_W + x, (image < B) & (at < pixels), part,
            first_capsule, O, P_PAD, LENGTH_ROWS, LENGTH_COLUMNS, COLUMNS, NORM_COLUMNS, OUT_W - x, SPAN, 1,
        )  # fmt: skip
        tl.store(r_ptr + offsets, r, mask=mask)
    x = pixel % wide * SPAN + 0 * b
    y_rows = y_ptr + (((z * B + b) * (OUT_H * OUT_W) + pixel // wide * OUT_W + x) * M + m) * (O * P)
    out = total.to(y_ptr.dtype.element_ty)
    y_mask = row_real[:, None]
    if not whole:
        y_mask = y_mask & column_real[None, :]
    if OUT_W % SPAN != 0:
        y_mask = y_mask & (x[:, None] + s[None, :] < OUT_W)
    y_columns = s * (M * O * P) + o * P + p
    if P == P_PAD:
        y_columns = tl.max_contiguous(tl.multiple_of(y_columns, P), P)
    tl.store(y_rows[:, None] + y_columns[None, :], out, mask=y_mask)


@on_its_device
def launch_forward(
    u: Tensor,
    w: Tensor,
    problem: Problem,
    slope: float,
    precision: str,
    *,
    activate: bool,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor | None]:
    """Squashed capsules [Z, B, O, H', W', m, p] and their lengths before squashing; or capsules as they are, and None.

    Args:
        u: input capsules [Z, B, C, H, W, m, n], any strides.
        w: capsule kernels [Z, kh, kw, C, O, n, p], any strides.
        problem: their sizes.
        slope: leaky ReLU's.
        precision: of float32 products, "tf32" or "ieee".
        activate: whether to apply leaky ReLU and squash.
        scale: what uint8 pixels, which are multiplied as whole numbers, stand for; other inputs are taken as they are.
    """
    shape = (problem.Z, problem.B, *problem.out, problem.m, problem.O, problem.p)
    y = memory.empty(shape, w.dtype if u.dtype == torch.uint8 else u.dtype, u.device)
    r = memory.empty(problem.r_shape, torch.float32, u.device) if activate else None
    if y.numel():
        tile = plan(problem).forward
        images = tile.images(problem)
        pixels = problem.out[0] * triton.cdiv(problem.out[1], tile.span)
        blocks = row_blocks(problem.B, pixels, problem.m_pad, tile.rows, images)
        grid = (blocks * triton.cdiv(problem.O, tile.columns // tile.span // problem.p_pad), problem.Z)
        forward_kernel[grid](
            u,
            w,
            y,
            y if r is None else r,
            problem.B,
            stride_z(u),
            stride_z(w),
            slope,
            scale,
            **constants(u, w, problem),
            IMAGES=images,
            SPAN=tile.span,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            INNER=tile.inner,
            ACTIVATE=activate,
            BYTES=u.dtype == torch.uint8,
            PRECISION=precision,
            **launched_ahead(u.device),
            num_warps=tile.warps,
            num_stages=tile.stages,
        )
    return as_logical(y), None if r is None else as_logical(r)
