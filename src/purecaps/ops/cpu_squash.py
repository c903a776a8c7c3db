"""Leaky ReLU and squash of capsules whose batch lies innermost in memory, tile by tile and in place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def squash_split(m: int, p: int, chunk: int | None) -> tuple[int, int, int, int] | None:
    """(p, m) split as (p1, p2, m1, m2), so that a squash runs over p2 and m2; None where no split does it."""
    if chunk is None:
        return (1, p, 1, m)
    if p % chunk == 0:
        return (p // chunk, chunk, m, 1)
    if chunk % p == 0 and m % (chunk // p) == 0:
        return (1, p, m * p // chunk, chunk // p)
    return None


class TileSquash:
    """Leaky ReLU and squash of output tiles in place, and their gradient.

    With a = leaky_relu(v), r = |a| and e = expm1(-r), the output is y = f a with f = -e/r, and
    da = f dy + (f'/r)(a.dy) a. With a = y/f put in, the second part is c (y.dy) y with c = (exp(-r) - f)/e^2.
    f and c, one number a capsule, are kept for the backward pass.

    Args:
        tiles: output [tiles, count, matrix rows, N], in memory [H', W', O, p, m, B].
        split: (p1, p2, m1, m2, B); the squash runs over p2 and m2.
        negative_slope: what leaky ReLU multiplies negative numbers with.
        factor: f, where the output has been squashed already.
        along: c, likewise.
    """

    def __init__(
        self,
        tiles: Tensor,
        split: tuple[int, int, int, int, int],
        negative_slope: float,
        factor: Tensor | None = None,
        along: Tensor | None = None,
    ) -> None:
        p1, _, m1, _, B = split
        self.y = tiles.view(len(tiles), -1, *split)
        self.negative_slope = negative_slope
        lengths = (*self.y.shape[:2], p1, 1, m1, 1, B)
        self.factor = tiles.new_empty(lengths) if factor is None else factor
        self.along = tiles.new_empty(lengths) if along is None else along
        self.products = torch.empty_like(self.y[0])
        # At this length f is 1 to the last digit, and neither e^2 nor what is divided by it underflows.
        self.least = torch.finfo(tiles.dtype).tiny ** 0.25

    def forward(self, index: int) -> None:
        """Activates one tile."""
        a, f, c = self.y[index], self.factor[index], self.along[index]
        F.leaky_relu_(a, self.negative_slope)
        r = torch.mul(a, a, out=self.products).sum(dim=(2, 4), keepdim=True).sqrt_().clamp_min_(self.least)
        e = torch.neg(r).expm1_()
        torch.div(e, r, out=f).neg_()
        torch.exp(r.neg_(), out=c).sub_(f).div_(e.square_())  # e + 1 for exp(-r) loses the digits of long capsules
        a.mul_(f)

    def backward(self, index: int, grad: Tensor) -> Tensor:
        """The gradient in the tile before leaky ReLU; in a buffer that the next call writes over."""
        y, f, c, dy = self.y[index], self.factor[index], self.along[index], grad.view(self.y.shape[1:])
        along = torch.mul(y, dy, out=self.products).sum(dim=(2, 4), keepdim=True).mul_(c)
        grad_a = torch.mul(dy, f, out=self.products).addcmul_(y, along)
        # The output has the sign of the input, which is all that leaky ReLU's gradient asks of it.
        torch.ops.aten.leaky_relu_backward.grad_input(grad_a, y, self.negative_slope, True, grad_input=grad_a)
        return grad_a.view(grad.shape)
