"""A capsule layer on the CPU, with the batch innermost in memory.

Two things make the conv2d reduction slow on few cores: convolutions of 4 to 16 channels, above all their backward
passes, and an activation that shares one factor among numbers that lie next to each other. Here the batch lies
innermost, [H', W', O, p, m, B]. The convolution is then a few batched matrix products (cpu_plan.py), and the factor of
a capsule is a row beside rows of the same length. The logical shape is a view of this, so that consecutive layers
hand capsules on as they are; only where m changes between them are they moved.

The activation runs on each piece of output right after the product that wrote it, while the piece is in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from purecaps.ops import conv
from purecaps.ops.activation import leaky_squash
from purecaps.ops.cpu_plan import make_plan
from purecaps.ops.cpu_squash import TileSquash, squash_split
from purecaps.ops.geometry import Geometry

_LEAST_BATCH = 32


def refuses(u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None = None) -> str | None:
    """Why a problem is left to "conv"."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "it is being traced; a compiler sees more in one conv2d"
    if u.device.type != "cpu":
        return f"device {u.device}, only cpu is covered"
    if torch.is_autocast_enabled("cpu"):
        return "autocast is on"
    if u.dtype not in (torch.float32, torch.float64):
        return f"{u.dtype}, only float32 and float64 are covered"
    if u.shape[4] != 1:
        return f"g = {u.shape[4]}, only g = 1 is covered"
    if geometry.dilation != (1, 1):
        return f"dilation {geometry.dilation}, only 1 is covered"
    if u.shape[0] < _LEAST_BATCH:
        return f"B = {u.shape[0]}, the batch lies innermost and pays from {_LEAST_BATCH} on"
    if _is_transformed(u) or _is_transformed(w):
        return "u or w is not a plain tensor but one of a function transform or of a subclass"
    return None


def _is_transformed(tensor: Tensor) -> bool:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or torch._C._are_functorch_transforms_active():
        return True
    return forward_ad.unpack_dual(tensor).tangent is not None


def caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """As `reference.caps_conv2d`, for the problems that `refuses` lets through."""
    return _apply(u, w, geometry, None, None)


def caps_block(u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
    """As `reference.caps_block`, for the problems that `refuses` lets through."""
    if squash_split(u.shape[5], w.shape[6], chunk) is None:
        return leaky_squash(caps_conv2d(u, w, geometry), negative_slope, chunk)
    return _apply(u, w, geometry, negative_slope, chunk)


def _apply(u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float | None, chunk: int | None) -> Tensor:
    y: Tensor = BatchInnermost.apply(u, w, geometry, negative_slope, chunk)  # type: ignore[no-untyped-call]
    return y


def _batch_innermost(u: Tensor) -> Tensor:
    """Capsules [B, C, H, W, g, m, n] as [H, W, g, C, n, m, B]."""
    return u.permute(2, 3, 4, 1, 6, 5, 0)


def _batch_outermost(x: Tensor) -> Tensor:
    """Undoes `_batch_innermost`."""
    return x.permute(6, 3, 0, 1, 2, 5, 4)


class BatchInnermost(torch.autograd.Function):
    """(u, w, geometry, negative_slope, chunk) -> squashed capsules; without a slope, the convolution alone."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float | None, chunk: int | None
    ) -> Tensor:
        B, C, H, W, _, m, n = u.shape
        kh, kw, _, O, _, _, p = w.shape
        pad_h, pad_w = geometry.padding
        size, out = (H + 2 * pad_h, W + 2 * pad_w), geometry.out_size((H, W), (kh, kw))
        plan = make_plan(size, (kh, kw), geometry.stride, out, C * n, O * p, m * B)
        x = _batch_innermost(u)
        x = F.pad(x, (0,) * 10 + (pad_w, pad_w, pad_h, pad_h)) if pad_h or pad_w else x.contiguous()
        x = x.view(*size, C * n, m * B)

        v = x.new_empty(*out, 1, O, p, m, B)
        tiles = v.view(plan.tiles, plan.count, plan.matrix_shape[0], plan.columns)
        split = squash_split(m, p, chunk)
        squash = None
        if negative_slope is not None and split is not None:
            squash = TileSquash(tiles, (*split, B), negative_slope)
        matrix, interleaved = plan.matrix(w), plan.new_interleaved(x)
        for index, tile in enumerate(tiles):
            plan.forward(matrix, plan.rows_under(x, index, interleaved), tile)
            if squash is not None:
                squash.forward(index)
        y = _batch_outermost(v)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.plan = (geometry, negative_slope, chunk), plan
        ctx.split = None if split is None else (*split, B)
        ctx.save_for_backward(u, w, x, *(() if squash is None else (y, squash.factor, squash.along)))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        (grad,) = grads
        if grad is None:
            return None, None, None, None, None
        if torch.is_grad_enabled():
            return *_differentiable_gradients(ctx, grad), None, None, None
        plan = ctx.plan
        u, w, x, *of_squash = ctx.saved_tensors
        shape = (plan.tiles, plan.count, plan.matrix_shape[0], plan.columns)
        upstream = _batch_innermost(grad).contiguous().view(shape)
        squash = None
        if of_squash:
            y, factor, along = of_squash
            tiles = _batch_innermost(y).contiguous().view(shape)
            squash = TileSquash(tiles, ctx.split, ctx.options[1], factor, along)
        needs_u, needs_w, *_ = ctx.needs_input_grad
        matrix, interleaved = plan.matrix(w), plan.new_interleaved(x)
        grad_x = torch.empty_like(x) if needs_u else None
        grad_matrix = x.new_zeros(plan.count, *plan.matrix_shape) if needs_w else None
        for index, tile in enumerate(upstream):
            grad_v = tile if squash is None else squash.backward(index, tile)
            if grad_matrix is not None:
                plan.add_matrix_gradient(grad_v, plan.rows_under(x, index, interleaved), grad_matrix)
            if grad_x is not None and plan.band:
                plan.rows_gradient(matrix, grad_v, grad_x)
            elif grad_x is not None:
                plan.rows_gradient(matrix, grad_v, interleaved)
                plan.add_rows_gradient(interleaved, index, grad_x)
        grad_w = None if grad_matrix is None else plan.kernel_gradient(grad_matrix.sum(0), w)
        grad_u = None if grad_x is None else _like(u, grad_x, ctx.options[0])
        return grad_u, grad_w, None, None, None


def _differentiable_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients once more as a graph of their own, through "conv": asked for under create_graph alone."""
    geometry, negative_slope, chunk = ctx.options
    # Aliases: were w made from u, the gradient in u itself would count the way through w a second time.
    u, w = (tensor.view_as(tensor) for tensor in ctx.saved_tensors[:2])
    v = conv.caps_conv2d(u, w, geometry)
    if negative_slope is not None:
        v = leaky_squash(v, negative_slope, chunk)
    wanted = [tensor for tensor, needed in zip((u, w), ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(v, wanted, grad, create_graph=True))
    grad_u, grad_w = (next(found) if needed else None for needed in ctx.needs_input_grad[:2])
    return grad_u, grad_w


def _like(u: Tensor, grad_x: Tensor, geometry: Geometry) -> Tensor:
    """The padded map's gradient [H, W, C*n, N] without the padding, in the shape and memory order of `u`."""
    B, C, H, W, g, m, n = u.shape
    pad_h, pad_w = geometry.padding
    inner = grad_x.view(H + 2 * pad_h, W + 2 * pad_w, g, C, n, m, B)[pad_h : pad_h + H, pad_w : pad_w + W]
    grad_u = _batch_outermost(inner)
    # In the order of u the refolding before this layer is a view on the way back too.
    return grad_u if grad_u.stride() == u.stride() else torch.empty_like(u).copy_(grad_u)
