"""Leaky ReLU and squash as one autograd node that keeps only its output and the capsules' lengths.

Both steps can be undone from the output, so the input need not be kept. The length before squashing is kept
beside it (one number a capsule): recovering it from the output alone, as -log1p(-|y|), loses all digits once
|y| rounds to 1, from a length of 17 in float32 and of 5 in bfloat16.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.ops.reference import length, norm_dtype, squash, squash_factor


def leaky_squash(v: Tensor, negative_slope: float, chunk: int | None, gradient: str = "exact") -> Tensor:
    """Leaky ReLU, then squash over the whole capsule or over chunks of `chunk` numbers.

    Args:
        v: capsules [..., g, m, p].
        negative_slope: what leaky ReLU multiplies negative numbers with.
        chunk: None for the whole capsule; else the row-major g*m*p numbers of a capsule are squashed in
            runs of this many, as the authors' code does.
        gradient: "exact", or "diagonal"; see `DiagonalSquash`.
    """
    if chunk is None:
        return apply_leaky_squash(v, negative_slope, (-3, -2, -1), gradient)
    m, p = v.shape[-2:]
    # Where chunks are whole rows, or parts of one row, splitting an axis is a view; flattening would copy.
    if p % chunk == 0:
        split = v.unflatten(-1, (p // chunk, chunk))
        dim: tuple[int, ...] = (-1,)
    elif chunk % p == 0 and m % (chunk // p) == 0:
        split = v.unflatten(-2, (m * p // chunk, chunk // p))
        dim = (-2, -1)
    else:
        split = v.flatten(-3).unflatten(-1, (-1, chunk))
        dim = (-1,)
    return apply_leaky_squash(split, negative_slope, dim, gradient).reshape(v.shape)


def apply_leaky_squash(v: Tensor, negative_slope: float, dim: tuple[int, ...], gradient: str = "exact") -> Tensor:
    if gradient == "diagonal":
        return DiagonalSquash.apply(F.leaky_relu(v, negative_slope), dim)  # type: ignore[no-untyped-call, no-any-return]
    y, _ = LeakySquash.apply(v, negative_slope, dim)  # type: ignore[no-untyped-call]
    return y  # type: ignore[no-any-return]


class LeakySquash(torch.autograd.Function):
    """(v, negative_slope, dim) -> (y, r): y = f(r) a with a = leaky_relu(v), r = |a|, f(r) = (1 - e^-r) / r.

    r is an output, not a hidden save, so that differentiating the backward pass once more is right too.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, negative_slope: float, dim: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        a = v if negative_slope == 1 else F.leaky_relu(v, negative_slope)
        # Not linalg.vector_norm: it is many times slower where the capsule's numbers are not adjacent.
        r = a.to(norm_dtype(a)).square().sum(dim=dim, keepdim=True).sqrt()
        return a * squash_factor(r).to(a.dtype), r

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _, ctx.negative_slope, ctx.dim = inputs
        ctx.save_for_backward(*output)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, None, None]:
        grad_y, grad_r = grads
        y, r = ctx.saved_tensors
        if grad_y is None and grad_r is None:
            return None, None, None
        # da = f dy + (f'/r)(a.dy) a + dr a/r, with a = y/f put in. The parts along a vanish with r, so at
        # lengths whose square would underflow they are dropped: what is left, f dy, is the exact limit.
        f = squash_factor(r)
        known = r > torch.finfo(r.dtype).tiny ** 0.25
        safe = torch.where(known, r, torch.ones_like(r))
        along = torch.zeros_like(r)
        if grad_y is not None:
            dot = (y.to(r.dtype) * grad_y.to(r.dtype)).sum(dim=ctx.dim, keepdim=True)
            # In this order, since f'/r, about 1/r^3, loses its digits from r = 1e13 on, and 1/(f r) is about 1.
            along = along + (torch.exp(-safe) - f) / (f * safe).square() * dot
        if grad_r is not None:
            along = along + grad_r / (f * safe)
        along = torch.where(known, along, torch.zeros_like(along)).to(y.dtype)
        grad_a = along * y if grad_y is None else torch.addcmul(f.to(y.dtype) * grad_y, along, y)
        # The output has the sign of the input, which is all that leaky ReLU's gradient asks of it.
        if ctx.negative_slope != 1:
            grad_a = torch.ops.aten.leaky_relu_backward(grad_a, y, ctx.negative_slope, True)
        return grad_a, None, None


class DiagonalSquash(torch.autograd.Function):
    """(a, dim) -> squashed a, whose backward pass keeps the diagonal of squash's Jacobian alone.

    With r = |a| and f(r) = (1 - e^-r) / r, the Jacobian is f I + (f'/r) a a^T. The authors' code takes
    da_i = (f + (f'/r) a_i^2) dy_i and leaves out what the numbers of a capsule do to each other's length.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, dim: tuple[int, ...]) -> Tensor:
        return squash(a, dim)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, ctx.dim = inputs
        ctx.save_for_backward(a)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (saved,) = ctx.saved_tensors
        a = saved.to(norm_dtype(saved))
        r = length(a, ctx.dim)
        f = squash_factor(r)
        # As in LeakySquash, with f a for y: where the square would underflow, the second part is dropped and f is the
        # exact limit.
        known = r > torch.finfo(r.dtype).tiny ** 0.25
        safe = torch.where(known, r, torch.ones_like(r))
        along = torch.where(known, (torch.exp(-safe) - f) / (f * safe).square(), torch.zeros_like(r))
        return ((f + along * (f * a).square()) * grad.to(a.dtype)).to(saved.dtype), None
