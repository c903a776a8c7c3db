# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""The kernels of all layers as products read them, in half precision or with (o, p) fastest in memory, by one launch.

One by one, as torch copies them, a step of pcapsnet0 in bfloat16 has nine launches, which cost more than the copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device
from purecaps.ops.triton.problem import memory_order

NUMBERS = 1024
SIDE = 32  # of a tile that is turned


@triton.jit
def kernel_copies_kernel(
    sources,
    targets,
    STARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TURNED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Matrices of ROWS x COLUMNS numbers, one after the other for each network; STARTS has each one's first program."""
    wait_for_inputs(AHEAD)
    tile = tl.program_id(0)
    for index in tl.static_range(len(ROWS)):
        if (tile >= STARTS[index]) & (tile < STARTS[index + 1]):
            _copy_tile(
                sources[index], targets[index], tile - STARTS[index], ROWS[index], COLUMNS[index],
                TURNED, TILE_ROWS, TILE_COLUMNS,
            )  # fmt: skip


@triton.jit
def _copy_tile(
    source_ptr,
    target_ptr,
    tile,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TURNED: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
):
    across: tl.constexpr = (COLUMNS + TILE_COLUMNS - 1) // TILE_COLUMNS
    row = (tile // across * TILE_ROWS + tl.arange(0, TILE_ROWS))[:, None]
    column = (tile % across * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS))[None, :]
    mask = (row < ROWS) & (column < COLUMNS)
    matrix = tl.program_id(1).to(tl.int64) * (ROWS * COLUMNS)
    value = tl.load(source_ptr + matrix + row * COLUMNS + column, mask=mask)
    to = column * ROWS + row if TURNED else row * COLUMNS + column
    tl.store(target_ptr + matrix + to, value.to(target_ptr.dtype.element_ty), mask=mask)


def copy_kernels(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copies kernels into targets that lie in memory as they do, without gaps."""
    _launch(sources, targets, [(1, source.numel()) for source in sources], (1, NUMBERS), networks=1)


def turn_kernels(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copies kernels [Z, kh, kw, C, O, g, n, p] into targets that have (O, p) fastest; see `can_turn`."""
    shapes = []
    for source in sources:
        Z, _, _, _, O, _, _, p = source.shape
        shapes.append((O * p, source.numel() // (Z * O * p)))
    _launch(sources, targets, shapes, (SIDE, SIDE), networks=sources[0].shape[0])


def can_copy(w: Tensor) -> bool:
    """Whether w's numbers lie without gaps."""
    return w.permute(*memory_order(w)).is_contiguous()


def can_turn(w: Tensor) -> bool:
    """Whether w [Z, kh, kw, C, O, g, n, p] lies in memory as `conv.empty_kernel` lays it out, with g = 1."""
    return w.shape[5] == 1 and w.permute(0, 5, 4, 7, 1, 2, 3, 6).is_contiguous()


@on_its_device
def _launch(
    sources: Sequence[Tensor],
    targets: Sequence[Tensor],
    shapes: Sequence[tuple[int, int]],
    tile: tuple[int, int],
    networks: int,
) -> None:
    starts = [0]
    for rows, columns in shapes:
        starts.append(starts[-1] + triton.cdiv(rows, tile[0]) * triton.cdiv(columns, tile[1]))
    kernel_copies_kernel[(starts[-1], networks)](
        tuple(sources),
        tuple(targets),
        STARTS=tuple(starts),
        ROWS=tuple(rows for rows, _ in shapes),
        COLUMNS=tuple(columns for _, columns in shapes),
        TURNED=tile[0] > 1,
        TILE_ROWS=tile[0],
        TILE_COLUMNS=tile[1],
        **launched_ahead(sources[0].device),
        num_warps=4,
    )
