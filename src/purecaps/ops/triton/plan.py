"""Block sizes for each kernel, from the sizes of the problem: a table to edit, not a search at run time.

A search (triton.autotune) would time kernels in the middle of a CUDA graph capture and could give another order of
summation, so other last digits, on another day.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from purecaps.ops.triton.plan_table import TUNED, TUNED_MANY
from purecaps.ops.triton.problem import Problem, power_of_two
from purecaps.ops.triton.tile import Tile, images_in

# Programs that fill the GPU once: an H200 has 132 multiprocessors.
FILL = 132
# Images from which on the measured block sizes hold.
LEAST_TUNED = 64
# Networks side by side from which on what was measured for ten of them holds, and images of all of them; how a weight
# gradient is split among programs depends on the networks alone.
MANY, MANY_IMAGES = 4, 1024
# tl.dot takes nothing smaller.
LEAST = 16
# Numbers of a result that one program keeps in registers.
MOST = 16384
# Bytes of shared memory to stay below; an H200 gives a program 227 KiB.
SHARED = 200 * 1024


def row_blocks(batch: int, pixels: int, m_pad: int, rows: int, images: int) -> int:
    """Tiles that cover all rows (pixel, image, m) with `rows` of them each, of which `images` images side by side."""
    return -(-batch // images) * -(-pixels // (rows // (images * m_pad)))


@dataclass(frozen=True)
class Plan:
    """How each kernel cuts up a problem.

    Args:
        forward: rows (pixel, m) by columns (o, p), summed over (i, j, c, n).
        activation: rows and columns as forward; `inner` is not used.
        inputs: rows (pixel, m) by columns (c, n), summed over (i, j) and (o, p).
        weights: rows (i, j, c, n) by columns (o, p), summed over (pixel, m).
        splits: programs that share the sum of one tile of the weight gradient.
    """

    forward: Tile
    activation: Tile
    inputs: Tile
    weights: Tile
    splits: int


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
    forward, _ = _tuned("forward", problem) or (_forward(problem), 0)
    inputs, _ = _tuned("inputs", problem) or (_inputs(problem), 0)
    weights, programs = _tuned("weights", problem) or (_weights(problem), (4 if problem.itemsize == 4 else 2) * FILL)
    chosen = Plan(forward, _activation(problem), inputs, weights, splits=0)
    chosen = replace(chosen, **_changes)
    if problem.geometry.dilation[1] != 1:  # neighbours see nothing in common
        chosen = replace(chosen, forward=replace(chosen.forward, span=1), inputs=replace(chosen.inputs, span=1))
    return chosen if chosen.splits else replace(chosen, splits=_splits(problem, chosen.weights, programs))


def _tuned(kernel: str, problem: Problem) -> tuple[Tile, int] | None:
    """What was measured for a layer like this one; nothing for maps or batches much smaller than the measured ones."""
    (stride, across), square = problem.geometry.stride, problem.H == problem.W and (problem.kh, problem.kw) == (3, 3)
    if not square or stride != across or problem.Z * problem.B < LEAST_TUNED or problem.geometry.dilation != (1, 1):
        return None
    key = (kernel, problem.itemsize, problem.C, problem.n, problem.O, problem.p, problem.H, stride)
    found = (TUNED_MANY.get(key) if has_many(kernel, problem.Z, problem.B) else None) or TUNED.get(key)
    return found if found is not None and problem.m_pad <= 4 else None


def has_many(kernel: str, networks: int, batch: int) -> bool:
    """Whether a kernel's tile is looked up among those for many networks or images.

    Weight gradients are split over programs instead, whatever the batch.
    """
    return networks >= MANY or (kernel != "weights" and networks * batch >= MANY_IMAGES)


def _forward(problem: Problem) -> Tile:
    columns = _capsule_columns(problem.O, problem.p_pad, at_most=128)
    blocks = problem.Z * -(-problem.O * problem.p_pad // columns)
    rows = _rows(problem.pixels * problem.m_pad, blocks, at_most=min(128, MOST // columns), least=problem.m_pad)
    return Tile(rows, columns, _inner(problem.inner, problem.itemsize), _warps(rows, columns))


def _activation(problem: Problem) -> Tile:
    columns = _capsule_columns(problem.O, problem.p_pad, at_most=128)
    rows = max(problem.m_pad, min(128, 4096 // columns))
    return Tile(rows, columns, 0, 8 if rows * columns > 4096 else 4)


def _inputs(problem: Problem) -> Tile:
    n_pad = power_of_two(problem.n)
    columns = _capsule_columns(problem.C, n_pad, at_most=128)
    width = problem.C * n_pad
    # Each of the stride's phases is a launch axis of its own, so rows are counted over all of them.
    pixels = problem.B * problem.H * problem.W
    blocks = problem.Z * -(-width // columns)
    rows = _rows(pixels * problem.m_pad, blocks, at_most=min(128, MOST // columns), least=problem.m_pad)
    return Tile(rows, columns, _inner(problem.O * problem.p, problem.itemsize), _warps(rows, columns))


def _weights(problem: Problem) -> Tile:
    columns = _capsule_columns(problem.O, problem.p_pad, at_most=64)
    rows = min(64, MOST // columns, max(LEAST, power_of_two(problem.inner)))
    if 64 < problem.inner <= 128 and columns <= 64:
        rows = 128  # one tile reads the gradient once
    if problem.itemsize == 4:
        # Two warps: the tensor instructions of four ask for rows of the sum side by side, which float32 has to be
        # copied for, number by number.
        return Tile(rows, columns, max(32, problem.m_pad), 2 if rows * columns <= 8192 else 4, 2)
    summed = max(LEAST, problem.m_pad, min(128, 8192 // columns))
    stages = 2 if 2 * summed * (rows + columns) * problem.itemsize <= SHARED else 1
    return Tile(rows, columns, summed, _warps(rows, columns), stages)


def _splits(problem: Problem, tile: Tile, programs: int) -> int:
    """As many parts as make so many programs for one network, but at least two steps for each.

    Where nothing else was measured, networks side by side split as one alone does: programs of two warps leave room for
    several networks on the device.
    """
    tiles = -(-problem.inner // tile.rows) * -(-problem.O * problem.p_pad // tile.columns)
    images = images_in(tile.inner, problem)
    steps = row_blocks(problem.B, problem.out[0] * problem.out[1], problem.m_pad, tile.inner, images)
    return max(1, min(programs // tiles, -(-steps // 2)))


def _capsule_columns(capsules: int, width: int, at_most: int) -> int:
    """Whole capsules side by side, each `width` columns: the least padding, and among equals the widest."""
    best, least = 0, None
    columns = max(LEAST, width)
    while columns == max(LEAST, width) or columns <= min(at_most, power_of_two(capsules) * width):
        caps = columns // width
        padded = -(-capsules // caps) * caps
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
