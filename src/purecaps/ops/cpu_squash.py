"""Leaky ReLU and squash in place, of capsules that lie in rows."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# A factor that is shared by this many neighbours is multiplied in vectors; below, it is written out for each first.
_VECTOR = 16


def activate(a: Tensor, negative_slope: float) -> tuple[Tensor, Tensor]:
    """Leaky ReLU and squash of `a` in place; what the gradient needs besides the result.

    With r = |a| the output is y = f a with f = -expm1(-r)/r, and da = f dy + (f'/r)(a.dy) a. With a = y/f put in, the
    second part is c (y.dy) y with c = (exp(-r) - f)/(r f)^2. Of r f, not of expm1, which is the same but where squares
    overflow: there c is NaN, as it is in "conv", and a run that diverges is noticed.

    Args:
        a: [L, M, R, G, O, Q]; a squash runs over M, G and Q.
        negative_slope: what leaky ReLU multiplies negative numbers with.

    Returns:
        f and c [L, 1, R, 1, O, 1], one number for what is squashed together.
    """
    F.leaky_relu_(a, negative_slope)
    # At this length f is 1 to the last digit, and neither (r f)^2 nor what is divided by it underflows.
    r = _dot(a, a).sqrt_().clamp_min_(torch.finfo(a.dtype).tiny ** 0.25)
    f = r.neg_().expm1().div_(r)
    c = r.exp().sub_(f).div_(r.mul_(f).square_())  # -r f + 1 for exp(-r) loses the digits of long capsules
    a.mul_(_spread(f, a))
    return f, c


def activation_gradient(y: Tensor, dy: Tensor, f: Tensor, c: Tensor, negative_slope: float) -> Tensor:
    """The gradient in what was activated.

    Args:
        y: the output [L, M, R, G, O, Q].
        dy: the gradient in it, likewise.
        f: what `activate` gave.
        c: likewise.
        negative_slope: as it had it.
    """
    along = _dot(y, dy).mul_(c)
    da = (dy * _spread(f, dy)).addcmul_(y, _spread(along, y))
    # The output has the sign of the input, which is all that leaky ReLU's gradient asks of it.
    torch.ops.aten.leaky_relu_backward.grad_input(da, y, negative_slope, True, grad_input=da)
    return da


def _dot(x: Tensor, y: Tensor) -> Tensor:
    """Sums of products over M, G and Q. Row by row over M, so that no product of all numbers is written to memory."""
    if x.shape[1] == 1:
        return (x * y).sum((3, 5), keepdim=True)
    total = x[:, :1] * y[:, :1]
    for row in range(1, x.shape[1]):
        total.addcmul_(x[:, row : row + 1], y[:, row : row + 1])
    return total.sum((3, 5), keepdim=True)


def _spread(factor: Tensor, over: Tensor) -> Tensor:
    """A factor [L, 1, R, 1, O, 1] that torch multiplies [L, M, R, G, O, Q] with in vectors."""
    _, M, _, G, _, Q = over.shape
    if Q >= _VECTOR or M == 1:
        return factor
    return factor.expand(-1, -1, -1, G, -1, Q).contiguous()
