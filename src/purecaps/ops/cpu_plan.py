"""The capsule convolution as batched matrix products over overlapping windows of a batch-innermost map.

A map is stored as [H, W, C*n, N] with N = m*B, so that a matrix product runs over long rows of N numbers, and so
does everything that is done number by number. The input of a piece of output is then one contiguous matrix, and
the inputs of neighbouring pieces overlap in memory: a strided view names them all, and no window is copied.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from purecaps.ops.geometry import Pair

# Multiplications with a band matrix's zeros that take about as long as starting one small product does.
_BAND_WASTE = 1 << 18


@dataclass(frozen=True)
class Plan:
    """How the output of one convolution is cut into products `matrix @ window`.

    There are two ways. With `band`, a window is the kh input rows under one output row, and the matrix holds the
    kernel once for each position of that row, with zeros between: few products, many zeros. Without, a window is
    the input of one output position; for it to be contiguous, the kh rows under an output row are interleaved
    first, into [W, kh, C*n, N].

    Args:
        size: the (padded) input map [H, W].
        kernel: kernel height and width.
        stride: step between output positions.
        out: the output map [H', W'].
        ins: numbers at an input position, C*n.
        outs: numbers at an output position, O*p.
        columns: N, the length of the innermost rows.
        band: which of the two ways.
    """

    size: Pair
    kernel: Pair
    stride: Pair
    out: Pair
    ins: int
    outs: int
    columns: int
    band: bool

    @property
    def tiles(self) -> int:
        """Pieces of the output that are finished one after the other, each while it is in the cache."""
        return 1 if self.band else self.out[0]

    @property
    def count(self) -> int:
        """Windows of one tile."""
        return self.out[0] if self.band else self.out[1]

    @property
    def matrix_shape(self) -> Pair:
        rows, columns = self.outs, self.kernel[0] * self.kernel[1] * self.ins
        return (self.out[1] * rows, columns // self.kernel[1] * self.size[1]) if self.band else (rows, columns)

    def matrix(self, w: Tensor) -> Tensor:
        """The kernel [kh, kw, C, O, 1, n, p] as a matrix of `matrix_shape`."""
        if not self.band:
            return w.permute(3, 6, 1, 0, 2, 4, 5).reshape(self.matrix_shape)
        matrix = w.new_zeros(self.matrix_shape)
        kernel = w.permute(3, 6, 0, 1, 2, 4, 5).reshape(self.outs, *self.kernel, self.ins)
        self._bands(matrix).copy_(kernel.expand(self.out[1], *kernel.shape))
        return matrix

    def kernel_gradient(self, matrix: Tensor, w: Tensor) -> Tensor:
        """The gradient in the kernel `w` that a gradient in its matrix amounts to."""
        kh, kw, C, O, g, n, p = w.shape
        if self.band:
            return self._bands(matrix).sum(0).view(O, p, kh, kw, C, g, n).permute(2, 3, 4, 0, 5, 6, 1)
        return matrix.view(O, p, kw, kh, C, g, n).permute(3, 2, 4, 0, 5, 6, 1)

    def rows_under(self, x: Tensor, tile: int, interleaved: Tensor) -> Tensor:
        """What a tile's windows are windows of; written to `interleaved` unless the map itself will do."""
        if self.band:
            return x
        top = tile * self.stride[0]
        return interleaved.copy_(x[top : top + self.kernel[0]].transpose(0, 1))

    def new_interleaved(self, like: Tensor) -> Tensor:
        """Room for the rows under one tile, [W, kh, C*n, N]; none where the map itself will do."""
        width = 0 if self.band else self.size[1]
        return like.new_empty(width, self.kernel[0], self.ins, self.columns)

    def forward(self, matrix: Tensor, rows: Tensor, tile: Tensor) -> None:
        """Writes an output tile [count, matrix rows, N]."""
        torch.bmm(matrix.expand(self.count, -1, -1), self._windows(rows), out=tile)

    def add_matrix_gradient(self, grad: Tensor, rows: Tensor, total: Tensor) -> None:
        """Adds a tile's share to the gradients [count, *matrix_shape], which are the matrix's once summed."""
        total.baddbmm_(grad, self._windows(rows).transpose(1, 2))

    def rows_gradient(self, matrix: Tensor, grad: Tensor, rows: Tensor) -> None:
        """Writes the gradient in the rows under a tile, given the tile's [count, matrix rows, N]."""
        rows.zero_()
        axis = 0 if self.band else 1
        # Windows this far apart do not overlap, so that a batch of them can be added to at once.
        apart = -(-self.kernel[axis] // self.stride[axis])
        for first in range(min(apart, self.count)):
            windows = self._windows(rows, first, apart)
            windows.baddbmm_(matrix.t().expand(len(windows), -1, -1), grad[first::apart])

    def add_rows_gradient(self, interleaved: Tensor, tile: int, total: Tensor) -> None:
        """Adds the gradient in the rows under a tile to the map's `total`, whose rows count from first use on."""
        rows = interleaved.transpose(0, 1)
        top, kh = tile * self.stride[0], self.kernel[0]
        begun = max(0, kh - self.stride[0]) if tile else 0
        total[top : top + begun].add_(rows[:begun])
        total[top + begun : top + kh].copy_(rows[begun:])
        below = self.size[0] if tile == self.tiles - 1 else top + self.stride[0]
        total[top + kh : below].zero_()

    def _windows(self, rows: Tensor, first: int = 0, every: int = 1) -> Tensor:
        """The overlapping windows [count, matrix columns, N] of a tile, or some of them."""
        if self.band:
            step = self.stride[0] * self.size[1] * self.ins * self.columns
        else:
            step = self.stride[1] * self.kernel[0] * self.ins * self.columns
        number = len(range(first, self.count, every))
        shape, strides = (number, self.matrix_shape[1], self.columns), (every * step, self.columns, 1)
        return rows.as_strided(shape, strides, rows.storage_offset() + first * step)

    def _bands(self, matrix: Tensor) -> Tensor:
        """The places [W', O*p, kh, kw, C*n] of a band matrix that hold the kernel."""
        (kh, kw), width = self.kernel, self.size[1] * self.ins
        shape = (self.out[1], self.outs, kh, kw, self.ins)
        strides = (self.outs * kh * width + self.stride[1] * self.ins, kh * width, width, self.ins, 1)
        return matrix.as_strided(shape, strides, matrix.storage_offset())


def make_plan(size: Pair, kernel: Pair, stride: Pair, out: Pair, ins: int, outs: int, columns: int) -> Plan:
    """The way that costs less for these sizes."""
    waste = (size[1] - kernel[1]) * ins * outs * columns
    return Plan(size, kernel, stride, out, ins, outs, columns, band=waste <= _BAND_WASTE)
