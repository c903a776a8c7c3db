"""Block sizes for each kernel, from the sizes of the problem: a table to edit, not a search at run time.

A search (triton.autotune) would time kernels in the middle of a CUDA graph capture and could give another order of
summation, so other last digits, on another day.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from purecaps.ops.triton.problem import Problem, power_of_two

# Programs that fill the GPU once: an H200 has 132 multiprocessors.
FILL = 132
# tl.dot takes nothing smaller.
LEAST = 16
# Numbers of a result that one program keeps in registers.
MOST = 16384
# Bytes of shared memory to stay below; an H200 gives a program 227 KiB.
SHARED = 200 * 1024


@dataclass(frozen=True)
class Tile:
    """One program's share of a matrix product.

    Args:
        rows: rows of the result, a power of two.
        columns: columns of the result, a power of two.
        inner: products summed in one step, a power of two.
        warps: warps of 32 threads.
        stages: how many steps' loads are under way at once.
    """

    rows: int
    columns: int
    inner: int
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True)
class Plan:
    """How each kernel cuts up a problem.

    Args:
        forward: rows (pixel, m) by columns (o, p), summed over (i, j, c, n).
        activation: rows and columns as forward; `inner` is not used.
        inputs: rows (pixel, m) by columns (c, n), summed over (i, j) and (o, p).
        weights: rows (i, j, c, n) by columns (o, p), summed over (pixel, m).
        splits: programs that share the sum of one tile of the weight gradient.
        fused: whether the weight gradient's kernel computes the activation's gradient on its way, instead of a
            kernel before it.
    """

    forward: Tile
    activation: Tile
    inputs: Tile
    weights: Tile
    splits: int
    fused: bool


_changes: dict[str, Any] = {}


@contextmanager
def planned(**changes: Any) -> Iterator[None]:
    """Replaces fields of every plan made within, for benchmarks: `with planned(splits=8): ...`."""
    global _changes
    before, _changes = _changes, {**_changes, **changes}
    try:
        yield
    finally:
        _changes = before


def plan(problem: Problem) -> Plan:
    """The plan for a problem."""
    chosen = Plan(
        forward=_forward(problem),
        activation=_activation(problem),
        inputs=_inputs(problem),
        weights=_weights(problem),
        splits=0,
        fused=True,
    )
    chosen = replace(chosen, **_changes)
    return replace(chosen, splits=_splits(problem, chosen.weights) if chosen.splits == 0 else chosen.splits)


def _forward(problem: Problem) -> Tile:
    columns = _capsule_columns(problem, at_most=128)
    blocks = problem.Z * -(-problem.O * problem.p_pad // columns)
    rows = _rows(problem.pixels * problem.m_pad, blocks, at_most=min(128, MOST // columns), least=problem.m_pad)
    return Tile(rows, columns, _inner(problem.inner, problem.itemsize), _warps(rows, columns))


def _activation(problem: Problem) -> Tile:
    columns = _capsule_columns(problem, at_most=128)
    rows = max(problem.m_pad, min(128, 4096 // columns))
    return Tile(rows, columns, 0, 8 if rows * columns > 4096 else 4)


def _inputs(problem: Problem) -> Tile:
    width = problem.C * problem.n
    columns = min(128, max(LEAST, power_of_two(width)))
    while columns > LEAST and -(-width // (columns // 2)) * (columns // 2) < -(-width // columns) * columns:
        columns //= 2
    # Each of the stride's phases is a launch axis of its own, so rows are counted over all of them.
    rows = _rows(problem.B * problem.H * problem.W * problem.m, problem.Z * -(-width // columns), at_most=128)
    return Tile(rows, columns, _inner(problem.O * problem.p, problem.itemsize), _warps(rows, columns))


def _weights(problem: Problem) -> Tile:
    columns = _capsule_columns(problem, at_most=64)
    rows = min(64, MOST // columns, max(LEAST, power_of_two(problem.inner)))
    if 64 < problem.inner <= 128 and columns <= 64:
        rows = 128  # one tile reads y and its gradient once
    summed = max(LEAST, problem.m_pad, min(128 if problem.itemsize == 2 else 64, 8192 // columns))
    # u, y and the gradient of y are staged: two stages of them have to fit shared memory.
    stages = 2 if 2 * summed * (rows + 2 * columns) * problem.itemsize <= SHARED else 1
    return Tile(rows, columns, summed, _warps(rows, columns), stages)


def _splits(problem: Problem, tile: Tile) -> int:
    """Enough programs to fill the GPU twice, but at least four steps for each; one where the sum is short anyway."""
    tiles = problem.Z * -(-problem.inner // tile.rows) * -(-problem.O * problem.p_pad // tile.columns)
    steps = -(-problem.pixels * problem.m_pad // tile.inner)
    return 1 if steps <= 8 else max(1, min(2 * FILL // tiles, steps // 4))


def _capsule_columns(problem: Problem, at_most: int) -> int:
    """Whole capsules side by side: the least padding, and among equals the widest."""
    best, least = 0, None
    columns = max(LEAST, problem.p_pad)
    while columns == max(LEAST, problem.p_pad) or columns <= min(at_most, power_of_two(problem.O) * problem.p_pad):
        caps = columns // problem.p_pad
        padded = -(-problem.O // caps) * caps
        if least is None or padded <= least:
            best, least = columns, padded
        columns *= 2
    return best


def _rows(rows: int, others: int, at_most: int, least: int = 1) -> int:
    """The largest block of rows that still fills the GPU."""
    block = at_most
    while block > LEAST and -(-rows // block) * others < FILL:
        block //= 2
    return max(block, least)


def _inner(length: int, itemsize: int) -> int:
    return min(64 if itemsize == 2 else 32, max(LEAST, power_of_two(length)))


def _warps(rows: int, columns: int) -> int:
    return 8 if rows * columns > 128 * 64 else 4
