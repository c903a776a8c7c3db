"""Where a convolution looks: stride, padding, dilation, and the map sizes that follow from them."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

IntOrPair: TypeAlias = "int | tuple[int, int]"
Pair: TypeAlias = tuple[int, int]

SQUASH_GRADIENTS = ("exact", "diagonal")


class Geometry(NamedTuple):
    """Stride, zero padding and dilation of a capsule convolution, each as a (height, width) pair."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)

    def out_size(self, size: Pair, kernel: Pair) -> Pair:
        """The output map [H', W'] for an input map [H, W]; below 1 where the kernel does not fit."""
        return (self._out(0, size[0], kernel[0]), self._out(1, size[1], kernel[1]))

    def smallest_input(self, out_size: Pair, kernel: Pair) -> Pair:
        """The smallest input map whose output map is at least `out_size`."""
        return (self._smallest(0, out_size[0], kernel[0]), self._smallest(1, out_size[1], kernel[1]))

    def _out(self, axis: int, size: int, kernel: int) -> int:
        span = self.dilation[axis] * (kernel - 1) + 1
        return (size + 2 * self.padding[axis] - span) // self.stride[axis] + 1

    def _smallest(self, axis: int, out: int, kernel: int) -> int:
        span = self.dilation[axis] * (kernel - 1) + 1
        return max(1, (out - 1) * self.stride[axis] + span - 2 * self.padding[axis])


class Block(NamedTuple):
    """What a capsule block does besides its kernel.

    Args:
        geometry: stride, padding and dilation.
        negative_slope: leaky ReLU's.
        squash_chunk: None squashes whole capsules; k squashes row-major runs of k numbers.
        squash_gradient: "exact", or "diagonal" for what the authors' code does.
    """

    geometry: Geometry = Geometry()
    negative_slope: float = 0.1
    squash_chunk: int | None = None
    squash_gradient: str = "exact"
