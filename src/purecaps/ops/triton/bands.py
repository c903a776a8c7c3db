"""Capsule kernels as band matrices, one a kernel row: what the fused network multiplies rows of a map with.

A row of a map, all its capsules side by side, times a matrix that repeats the kernel along the diagonal is that kernel
row's share of an output row. Most of such a matrix is zeros; tensor cores have that arithmetic to spare, and what they
do not have is a way to gather windows out of registers.

The first two layers, whose rows are the longest, are cut into blocks: `SEEN` positions of the first map, and as many of
the second as see no others. So neighbouring blocks of the first map overlap, and the pixels of a block are loaded
straight from the image. Every block has the same matrices, of a few kilobytes where a whole row would take 48.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.ops.geometry import Geometry, Pair
from purecaps.ops.triton.problem import power_of_two

DEPTH = 5
KERNEL = (3, 3)
# Numbers in a row of a map, padded; beyond, matrices and histories of rows outgrow a multiprocessor.
MOST_COLUMNS = 256
MOST_M = 8
# Of the largest matrix: a program has 227 KB of shared memory on Hopper, and needs some 50 KB beside it.
MOST_BYTES = 128 * 1024
LEAST_SIDE = 16  # of a matrix that a tensor core takes
SEEN = 8  # positions of the first map in a block: of a stride of 1, six of the second see eight


@dataclass(frozen=True)
class Stage:
    """One layer of a network: its kernel [kh, kw, C, O, g, n, p] and how it is applied."""

    weight: Tensor
    geometry: Geometry
    slope: float
    chunk: int | None


@dataclass(frozen=True)
class Bands:
    """A network as its five stacks of matrices.

    Numbers of a row lie in the order (x, c, n), n padded to a power of two, and the whole row likewise; those of the
    first two maps block by block, each block padded. Rows of capsules, m, are rows of the product: the first matrix,
    which makes them, has columns (m, x, o, n).

    Args:
        matrices: for each layer [3, K, N], the share of each kernel row.
        m: rows of a capsule, padded.
        widths: padded numbers of one capsule row, what layers 1 to 5 write.
        maps: (height, width) of the image and of the five maps.
        strides: (vertical, horizontal), of the five layers.
        channels: of the images.
        classes: capsules of the last layer.
        slope: leaky ReLU's.
        block: positions of the second map in a block.
        blocks: of a row of the first two maps, a power of two.
        window: pixels of one channel that a block sees, rounded up for aligned loads.
    """

    matrices: tuple[Tensor, ...]
    m: int
    widths: tuple[int, ...]
    maps: tuple[Pair, ...]
    strides: tuple[Pair, ...]
    channels: int
    classes: int
    slope: float
    block: int
    blocks: int
    window: int

    @property
    def step(self) -> int:
        """Pixels from one block to the next."""
        return self.block * self.strides[0][1] * self.strides[1][1]


def refuses(stages: Sequence[Stage], in_shape: tuple[int, int, int], dtype: torch.dtype) -> str | None:
    """Why one kernel cannot hold a network; None where it can.

    Args:
        stages: the layers, first to last.
        in_shape: the images' (channels, height, width).
        dtype: that layers are multiplied in.
    """
    if len(stages) != DEPTH:
        return f"{len(stages)} layers, only networks of {DEPTH} are covered"
    for number, stage in enumerate(stages, 1):
        reason = _layer_refuses(stage)
        if reason is not None:
            return f"layer {number} has {reason}"
    if len({stage.slope for stage in stages}) > 1:
        return f"slopes {', '.join(str(stage.slope) for stage in stages)}, only one for all layers is covered"
    first = stages[0].weight.shape
    if first[5] != in_shape[0]:
        return f"a first layer of n = {first[5]}, only the image's {in_shape[0]} channels are covered"
    numbers, n = first[6], stages[1].weight.shape[5]
    if numbers // n > MOST_M:
        return f"capsules of {numbers // n} rows, only up to {MOST_M} are covered"
    for number in (3, 4, 5):
        before, n = stages[number - 2].weight.shape[6], stages[number - 1].weight.shape[5]
        if before != n:
            return (
                f"layer {number} reads rows of {n} out of capsules with rows of {before}, only equal ones are covered"
            )
    maps = _maps(stages, in_shape)
    if maps[-1] != (1, 1):
        return f"a last map of {maps[-1][0]}x{maps[-1][1]}, only 1x1 is covered"
    sides = _sides(stages, in_shape)
    for number, (_, columns) in enumerate(sides, 1):
        across = {1: columns // _rows(stages), 2: columns * _blocks(stages, maps)}.get(number, columns)
        if across > MOST_COLUMNS:
            return f"{across} numbers, padded, in a row of map {number}, only up to {MOST_COLUMNS} are covered"
    for number, (down, columns) in enumerate(sides, 1):
        size = down * columns * dtype.itemsize
        if size > MOST_BYTES:
            return (
                f"layer {number} has matrices of {size // 1024} KB in {dtype}, only up to {MOST_BYTES // 1024} KB are "
                "covered: half precision halves them"
            )
    return None


def make_bands(stages: Sequence[Stage], in_shape: tuple[int, int, int], dtype: torch.dtype) -> Bands:
    """The matrices of a network that `refuses` let pass.

    Args:
        stages: the layers, first to last.
        in_shape: the images' (channels, height, width).
        dtype: of the matrices.
    """
    maps, sides = _maps(stages, in_shape), _sides(stages, in_shape)
    matrices = [_first_band(stages, sides[0])]
    for layer in range(1, DEPTH):
        stage, width = stages[layer], maps[layer][1]
        apart = stage.weight.shape[2] * power_of_two(stage.weight.shape[5])
        if layer == 1:
            starts, out_width = [x * apart for x in range(SEEN)], _block(stages)
        else:
            of_block, block = (sides[1][1], _block(stages)) if layer == 2 else (0, width)
            starts, out_width = [x // block * of_block + x % block * apart for x in range(width)], maps[layer + 1][1]
        matrices.append(_band(stage, starts, out_width, sides[layer]))
    return Bands(
        matrices=tuple(matrix.to(dtype).contiguous() for matrix in matrices),
        m=_rows(stages),
        widths=(
            power_of_two(stages[1].weight.shape[5]),
            *(power_of_two(stage.weight.shape[6]) for stage in stages[1:]),
        ),
        maps=maps,
        strides=tuple(stage.geometry.stride for stage in stages),
        channels=in_shape[0],
        classes=stages[-1].weight.shape[3],
        slope=stages[0].slope,
        block=_block(stages),
        blocks=_blocks(stages, maps),
        window=_window(stages),
    )


def _layer_refuses(stage: Stage) -> str | None:
    kh, kw, _, _, g, _, _ = stage.weight.shape
    if g != 1:
        return f"g = {g}, only g = 1 is covered"
    if (kh, kw) != KERNEL:
        return f"a kernel of {kh}x{kw}, only 3x3 is covered"
    if stage.geometry.padding != (0, 0):
        return f"padding {stage.geometry.padding}, only no padding is covered"
    if stage.geometry.dilation != (1, 1):
        return f"dilation {stage.geometry.dilation}, only no dilation is covered"
    if max(stage.geometry.stride) > KERNEL[0]:
        return f"stride {stage.geometry.stride}, only up to the kernel's {KERNEL[0]} is covered"
    if stage.chunk is not None:
        return f"squash_chunk = {stage.chunk}, only whole capsules are covered"
    return None


def _maps(stages: Sequence[Stage], in_shape: tuple[int, int, int]) -> tuple[Pair, ...]:
    maps = [(in_shape[1], in_shape[2])]
    for stage in stages:
        maps.append(stage.geometry.out_size(maps[-1], KERNEL))
    return tuple(maps)


def _rows(stages: Sequence[Stage]) -> int:
    """Rows of a capsule, padded: what the second layer makes of the numbers that the first writes."""
    return power_of_two(stages[0].weight.shape[6] // stages[1].weight.shape[5])


def _block(stages: Sequence[Stage]) -> int:
    """Positions of the second map that see no others than `SEEN` of the first."""
    return (SEEN - KERNEL[1]) // stages[1].geometry.stride[1] + 1


def _window(stages: Sequence[Stage]) -> int:
    """Pixels that these see, in fours: bytes are loaded four at a time."""
    pixels = stages[0].geometry.stride[1] * (SEEN - 1) + KERNEL[1]
    return -(-pixels // 4) * 4


def _blocks(stages: Sequence[Stage], maps: Sequence[Pair]) -> int:
    return power_of_two(-(-maps[2][1] // _block(stages)))


def _sides(stages: Sequence[Stage], in_shape: tuple[int, int, int]) -> list[Pair]:
    """Sides of each layer's matrices."""
    maps = _maps(stages, in_shape)
    seen = _padded_side(SEEN * stages[0].weight.shape[3] * power_of_two(stages[1].weight.shape[5]))
    sides = [(_padded_side(in_shape[0] * _window(stages)), _rows(stages) * seen)]
    for layer in range(1, DEPTH):
        shape = stages[layer].weight.shape
        down = seen if layer == 1 else sides[-1][1] * (_blocks(stages, maps) if layer == 2 else 1)
        positions = _block(stages) if layer == 1 else maps[layer + 1][1]
        sides.append((down, _padded_side(positions * shape[3] * power_of_two(shape[6]))))
    return sides


def _first_band(stages: Sequence[Stage], sides: Pair) -> Tensor:
    """[3, (c, pixel), (m, x, o, n)]: the pixels of a block to the rows of capsules that the second layer reads."""
    stage, n, m = stages[0], stages[1].weight.shape[5], _rows(stages)
    kh, kw, _, _, _, C, p = stage.weight.shape
    kernel = stage.weight.detach()[:, :, 0, :, 0].unflatten(-1, (p // n, n))  # [kh, kw, O, C, m, n]
    block = F.pad(kernel, (0, power_of_two(n) - n)).permute(0, 1, 3, 4, 2, 5).flatten(4)  # [kh, kw, C, m, (o, n)]
    matrix = kernel.new_zeros(kh, C, _window(stages), m, sides[1] // m)
    for x in range(SEEN):
        for j in range(kw):
            columns = slice(x * block.shape[4], (x + 1) * block.shape[4])
            matrix[:, :, x * stage.geometry.stride[1] + j, : p // n, columns] = block[:, j]
    rows = matrix.reshape(kh, -1, sides[1])
    return F.pad(rows, (0, 0, 0, sides[0] - rows.shape[1]))


def _band(stage: Stage, starts: Sequence[int], out_width: int, sides: Pair) -> Tensor:
    """[3, (x, c, n), (x', o, p)].

    Args:
        stage: the layer.
        starts: where in a row of the input each position's numbers begin.
        out_width: positions to make.
        sides: of the matrix.
    """
    kh, kw, _, _, _, n, p = stage.weight.shape
    kernel = stage.weight.detach().squeeze(4).permute(0, 1, 2, 4, 3, 5)  # [kh, kw, C, n, O, p]
    padded = F.pad(kernel, (0, power_of_two(p) - p, 0, 0, 0, power_of_two(n) - n))
    block = padded.flatten(4).flatten(2, 3)  # [kh, kw, (c, n), (o, p)]
    matrix = kernel.new_zeros(kh, *sides)
    down, across = block.shape[2:]
    for x in range(out_width):
        for j in range(kw):
            start = starts[x * stage.geometry.stride[1] + j]
            matrix[:, start : start + down, x * across : (x + 1) * across] = block[:, j]
    return matrix


def _padded_side(size: int) -> int:
    return max(LEAST_SIDE, power_of_two(size))
