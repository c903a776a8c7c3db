"""Capsule kernels as band matrices, one a kernel row: what the fused network multiplies whole rows of a map with.

A row of a map, all its capsules side by side, times a matrix that repeats the kernel along the diagonal is that kernel
row's share of an output row. Most of such a matrix is zeros, seven numbers in eight for pcapsnet2 with the padding, and
tensor cores have that arithmetic to spare; what they do not have is a way to gather windows out of registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
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

    Numbers of a row lie in the order (x, c, n), n padded to a power of two, and the whole row likewise. Rows of
    capsules, m, are rows of the product: the first matrix, which makes them, has columns (m, x, o, n).

    Args:
        matrices: for each layer [3, K, N], the share of each kernel row.
        m: rows of a capsule, padded.
        widths: padded numbers of one capsule row, what layers 1 to 5 write.
        maps: (height, width) of the image and of the five maps.
        strides: vertical, of the five layers.
        channels: of the images.
        classes: capsules of the last layer.
        slope: leaky ReLU's.
    """

    matrices: tuple[Tensor, ...]
    m: int
    widths: tuple[int, ...]
    maps: tuple[Pair, ...]
    strides: tuple[int, ...]
    channels: int
    classes: int
    slope: float

    def columns(self, layer: int) -> int:
        """Padded numbers in a row of the map that a layer writes, the first being 0."""
        columns: int = self.matrices[layer].shape[2]
        return columns // self.m if layer == 0 else columns


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
    rows = [_row_numbers(stages, in_shape, maps, number) for number in range(DEPTH + 1)]
    for number, row in enumerate(rows):
        if row > MOST_COLUMNS:
            return f"{row} numbers in a row of map {number}, only up to {MOST_COLUMNS} are covered"
    for number in range(1, DEPTH + 1):
        m = power_of_two(numbers // stages[1].weight.shape[5]) if number == 1 else 1
        size = _padded_side(rows[number - 1]) * m * _padded_side(rows[number]) * dtype.itemsize
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
    maps = _maps(stages, in_shape)
    n = stages[1].weight.shape[5]
    m = power_of_two(stages[0].weight.shape[6] // n)
    matrices = [_first_band(stages[0], maps[0][1], maps[1][1], n, m)]
    matrices += [_band(stages[layer], maps[layer][1], maps[layer + 1][1]) for layer in range(1, DEPTH)]
    widths = [power_of_two(n)] + [power_of_two(stage.weight.shape[6]) for stage in stages[1:]]
    return Bands(
        matrices=tuple(matrix.to(dtype).contiguous() for matrix in matrices),
        m=m,
        widths=tuple(widths),
        maps=maps,
        strides=tuple(stage.geometry.stride[0] for stage in stages),
        channels=in_shape[0],
        classes=stages[-1].weight.shape[3],
        slope=stages[0].slope,
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


def _row_numbers(stages: Sequence[Stage], in_shape: tuple[int, int, int], maps: Sequence[Pair], number: int) -> int:
    """Numbers in a row of a map, 0 being the image, for one row of its capsules."""
    if number == 0:
        return in_shape[0] * in_shape[2]
    shape = stages[number - 1].weight.shape
    across = stages[1].weight.shape[5] if number == 1 else shape[6]
    return maps[number][1] * int(shape[3]) * power_of_two(across)


def _first_band(stage: Stage, width: int, out_width: int, n: int, m: int) -> Tensor:
    """[3, (c, x), (m, x', o, n)]: pixels of one image row to the rows of capsules that the second layer reads."""
    kh, kw, _, O, _, C, p = stage.weight.shape
    kernel = (
        stage.weight.detach()[:, :, 0, :, 0].unflatten(-1, (p // n, n)).permute(0, 1, 3, 4, 2, 5)
    )  # [kh, kw, C, m, O, n]
    columns = _padded_side(out_width * O * power_of_two(n))
    matrix = kernel.new_zeros(kh, C, width, m, out_width, O, power_of_two(n))
    for x in range(out_width):
        for j in range(kw):
            matrix[:, :, x * stage.geometry.stride[1] + j, : p // n, x, :, :n] = kernel[:, j]
    rows = torch.nn.functional.pad(matrix.reshape(kh, C * width, m, -1), (0, columns - matrix[0, 0, 0, 0].numel()))
    return _padded(rows.reshape(kh, C * width, m * columns))


def _band(stage: Stage, width: int, out_width: int) -> Tensor:
    """[3, (x, c, n), (x', o, p)]."""
    kh, kw, C, O, _, n, p = stage.weight.shape
    kernel = stage.weight.detach().squeeze(4).permute(0, 1, 2, 4, 3, 5)  # [kh, kw, C, n, O, p]
    matrix = kernel.new_zeros(kh, width, C, power_of_two(n), out_width, O, power_of_two(p))
    for x in range(out_width):
        for j in range(kw):
            matrix[:, x * stage.geometry.stride[1] + j, :, :n, x, :, :p] = kernel[:, j]
    return _padded(matrix.reshape(kh, width * C * power_of_two(n), out_width * O * power_of_two(p)))


def _padded(matrix: Tensor) -> Tensor:
    """The last two axes padded with zeros to sizes that tensor cores take."""
    down, across = _padded_side(matrix.shape[1]), _padded_side(matrix.shape[2])
    return torch.nn.functional.pad(matrix, (0, across - matrix.shape[2], 0, down - matrix.shape[1]))


def _padded_side(size: int) -> int:
    return max(LEAST_SIDE, power_of_two(size))
