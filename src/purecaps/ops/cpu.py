"""A capsule layer on the CPU: oneDNN's convolutions, channels last, with an activation that is made for that order.

The conv2d reduction spends more time in leaky ReLU and squash than in convolutions when it is run operation by
operation. Here they run in place on the convolution's output, in the order in which it lies in memory, and keep for the
backward pass that output and two numbers a capsule. The logical shape is a view of it, so that consecutive layers hand
capsules on as they are, or move them once where they are folded differently (cpu_fold.py).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from purecaps.ops import conv
from purecaps.ops.activation import leaky_squash
from purecaps.ops.cpu_fold import channels_last, covers_chunk, make_fold
from purecaps.ops.cpu_squash import activate, activation_gradient
from purecaps.ops.geometry import Geometry


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
    if _is_transformed(u) or _is_transformed(w):
        return "u or w is not a plain tensor but one of a function transform or of a subclass"
    m, p = u.shape[5], w.shape[6]
    if not covers_chunk(chunk, m, p):
        return f"squash_chunk = {chunk}, which in capsules of {m}x{p} is neither whole rows nor parts of one"
    return None


def _is_transformed(tensor: Tensor) -> bool:
    if type(tensor) not in (Tensor, torch.nn.Parameter) or torch._C._are_functorch_transforms_active():
        return True
    return forward_ad.unpack_dual(tensor).tangent is not None


def caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """As `reference.caps_conv2d`: conv2d itself, since without an activation there is nothing to gain."""
    return conv.caps_conv2d(u, w, geometry)


def caps_block(u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
    """As `reference.caps_block`, for the problems that `refuses` lets through."""
    y: Tensor = ChannelsLast.apply(u, w, geometry, negative_slope, chunk)  # type: ignore[no-untyped-call]
    return y


class ChannelsLast(torch.autograd.Function):
    """(u, w, geometry, negative_slope, chunk) -> squashed capsules."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
        out = geometry.out_size((u.shape[2], u.shape[3]), (w.shape[0], w.shape[1]))
        fold = make_fold(u.shape[5], w.shape, one_position=out == (1, 1))
        x, weights = fold.images(u), fold.weights(w)
        v = convolve(x, weights, geometry, fold.groups)
        f, c = activate(fold.squashed_together(v, chunk), negative_slope)
        y = fold.capsules(v, w.shape[3])
        ctx.set_materialize_grads(False)
        ctx.options, ctx.fold = (geometry, negative_slope, chunk), fold
        ctx.save_for_backward(u, w, x, weights, y, f, c)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        (grad,) = grads
        if grad is None:
            return None, None, None, None, None
        if torch.is_grad_enabled():
            return *_differentiable_gradients(ctx, grad), None, None, None
        fold, (geometry, negative_slope, chunk) = ctx.fold, ctx.options
        u, w, x, weights, y, f, c = ctx.saved_tensors
        dy, y = fold.images(grad), fold.images(y)
        y_rows, dy_rows = (fold.squashed_together(each, chunk) for each in (y, dy))
        dv = activation_gradient(y_rows, dy_rows, f, c, negative_slope).view(dy.permute(0, 2, 3, 1).shape)
        wanted = ctx.needs_input_grad[:2]
        dx, dweights = convolution_gradients(channels_last(dv), x, weights, geometry, fold.groups, wanted)
        grad_u = None if dx is None else _in_order_of(u, fold.capsules(dx, w.shape[2]))
        return grad_u, None if dweights is None else fold.weight_gradient(dweights), None, None, None


def convolve(x: Tensor, weights: Tensor, geometry: Geometry, groups: int) -> Tensor:
    """The plain convolution of images [N, I, H, W] with a kernel [K, I/groups, kh, kw], channels last like both."""
    if _is_product(x, weights, geometry, groups):
        return channels_last((_rows(x) @ _rows(weights).t())[:, None, None])
    stride, padding, dilation = geometry
    return channels_last(F.conv2d(x, weights, None, stride, padding, dilation, groups).permute(0, 2, 3, 1))


def convolution_gradients(
    grad: Tensor, x: Tensor, weights: Tensor, geometry: Geometry, groups: int, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients in images and kernel, those that are wanted, channels last."""
    if _is_product(x, weights, geometry, groups):
        # oneDNN takes ten times as long for the kernel's gradient of such a layer (64 -> 160 channels, batch 512).
        columns = _rows(grad)
        dx = _like(x, columns @ _rows(weights)) if wanted[0] else None
        return dx, _like(weights, columns.t() @ _rows(x)) if wanted[1] else None
    dx, dweights, _ = torch.ops.aten.convolution_backward(
        grad, x, weights, None, *map(list, geometry), False, [0, 0], groups, [*wanted, False]
    )
    return (dx if wanted[0] else None), (dweights if wanted[1] else None)


def _is_product(x: Tensor, weights: Tensor, geometry: Geometry, groups: int) -> bool:
    """Whether the kernel lies on all of the map, once: then rows of numbers are multiplied with rows of numbers."""
    return groups == 1 and x.shape[2:] == weights.shape[2:] and geometry.padding == (0, 0)


def _rows(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).flatten(1)


def _like(images: Tensor, rows: Tensor) -> Tensor:
    return rows.view(images.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


def _in_order_of(u: Tensor, grad: Tensor) -> Tensor:
    # In the order of u the refolding before this layer is a view on the way back too.
    return grad if grad.stride() == u.stride() else torch.empty_like(u).copy_(grad)


def _differentiable_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients once more as a graph of their own, through "conv": asked for under create_graph alone."""
    geometry, negative_slope, chunk = ctx.options
    # Aliases: were w made from u, the gradient in u itself would count the way through w a second time.
    u, w = (tensor.view_as(tensor) for tensor in ctx.saved_tensors[:2])
    y = leaky_squash(conv.caps_conv2d(u, w, geometry), negative_slope, chunk)
    wanted = [tensor for tensor, needed in zip((u, w), ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
    grad_u, grad_w = (next(found) if needed else None for needed in ctx.needs_input_grad[:2])
    return grad_u, grad_w
