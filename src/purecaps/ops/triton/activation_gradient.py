# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""The gradient through leaky ReLU and squash, from what the forward pass wrote: y and the lengths r."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton import memory
from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device
from purecaps.ops.triton.parts import activation_gradient, length_positions, tile_rows
from purecaps.ops.triton.plan import plan
from purecaps.ops.triton.problem import Problem, as_rows, capsule_constants, stride_z


@triton.jit(do_not_specialize=["pixels"])
def activation_gradient_kernel(
    y_ptr,
    r_ptr,
    grad_y_ptr,
    grad_r_ptr,
    grad_v_ptr,
    pixels,
    grad_y_z,
    slope,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    O: tl.constexpr,
    P: tl.constexpr,
    M: tl.constexpr,
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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    capsules: tl.constexpr = COLUMNS // P_PAD
    column_blocks: tl.constexpr = (O + capsules - 1) // capsules
    program = tl.program_id(0)
    first_pixel = program // column_blocks * (ROWS // M_PAD)
    first_capsule = program % column_blocks * capsules
    z = tl.program_id(1).to(tl.int64)

    row = tl.arange(0, ROWS)
    pixel = first_pixel + row // M_PAD
    m = row % M_PAD
    column = tl.arange(0, COLUMNS)
    o = first_capsule + column // P_PAD
    p = column % P_PAD
    mask = ((pixel < pixels) & (m < M))[:, None] & ((o < O) & (p < P))[None, :]
    rows = ((z * pixels + pixel) * M + m) * (O * P)
    offsets = rows[:, None] + (o * P + p)[None, :]
    wait_for_inputs(AHEAD)
    y = tl.load(y_ptr + offsets, mask=mask, other=0.0).to(tl.float32)

    _, image, part = tile_rows(0, first_pixel, ROWS // NORM_ROWS, ROWS // M_PAD, M_PAD // NORM_ROWS)
    at, inside = length_positions(
        z * pixels + image, image < pixels, part, first_capsule, O, P_PAD, LENGTH_ROWS, LENGTH_COLUMNS,
        COLUMNS, NORM_COLUMNS, image, 1, 1,
    )  # fmt: skip
    r = tl.load(r_ptr + at, mask=inside, other=0.0)
    grad_r = r
    if HAS_GRAD_R:
        grad_r = tl.load(grad_r_ptr + at, mask=inside, other=0.0)
    grad_y = y
    if HAS_GRAD_Y:
        line = pixel // OUT_W
        corner = (line // OUT_H).to(tl.int64) * G_B + (line % OUT_H).to(tl.int64) * G_H
        g_rows = grad_y_ptr + z * grad_y_z + corner + (pixel % OUT_W).to(tl.int64) * G_W + m.to(tl.int64) * G_M
        g_columns = o.to(tl.int64) * G_O + p.to(tl.int64) * G_P
        grad_y = tl.load(g_rows[:, None] + g_columns[None, :], mask=mask, other=0.0).to(tl.float32)
    grad_v = activation_gradient(
        y, grad_y, r, grad_r, slope, HAS_GRAD_Y, HAS_GRAD_R, ROWS, COLUMNS, NORM_ROWS, NORM_COLUMNS, True
    )
    tl.store(grad_v_ptr + offsets, grad_v.to(grad_v_ptr.dtype.element_ty), mask=mask)


@on_its_device
def launch_activation_gradient(
    y: Tensor, r: Tensor, grad_y: Tensor | None, grad_r: Tensor | None, problem: Problem, slope: float
) -> Tensor:
    """The gradient before leaky ReLU and squash, in rows [Z, B, H', W', m, O, p].

    Args:
        y: squashed capsules [Z, B, O, H', W', m, p].
        r: their lengths before squashing.
        grad_y: gradient of y, any strides; None where nothing used it.
        grad_r: gradient of r; None where nothing used it.
        problem: the sizes.
        slope: leaky ReLU's.
    """
    grad_v = memory.empty(tuple(as_rows(y).shape), y.dtype, y.device)
    if grad_v.numel():
        tile = plan(problem).activation
        y_rows, r_rows = as_rows(y).contiguous(), as_rows(r).contiguous()
        grad_r_rows = r_rows if grad_r is None else as_rows(grad_r).contiguous()
        shown = y if grad_y is None else grad_y
        strides = dict(zip(("G_B", "G_O", "G_H", "G_W", "G_M", "G_P"), shown.stride()[1:], strict=True))
        blocks = triton.cdiv(problem.pixels, tile.rows // problem.m_pad)
        grid = (blocks * triton.cdiv(problem.O, tile.columns // problem.p_pad), problem.Z)
        activation_gradient_kernel[grid](
            y_rows,
            r_rows,
            shown,
            grad_r_rows,
            grad_v,
            problem.pixels,
            stride_z(shown),
            slope,
            OUT_H=problem.out[0],
            OUT_W=problem.out[1],
            **capsule_constants(problem),
            **strides,
            HAS_GRAD_Y=grad_y is not None,
            HAS_GRAD_R=grad_r is not None,
            ROWS=tile.rows,
            COLUMNS=tile.columns,
            **launched_ahead(grad_v.device),
            num_warps=tile.warps,
        )
    return grad_v
