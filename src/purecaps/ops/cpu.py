"""A capsule layer on the CPU: oneDNN's convolutions, channels last, with an activation that is made for that order.

The conv2d reduction spends more time in leaky ReLU and squash than in convolutions when it is run operation by
operation. Here they run in place on the convolution's output, in the order in which it lies in memory, and keep for the
backward pass that output and two numbers a capsule. The logical shape is a view of it, so that consecutive layers hand
capsules on as they are, or move them once where they are folded differently (cpu_fold.py).

In bfloat16, also that of autocast, maps are kept and multiplied in bfloat16; the activation is computed in float32.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from purecaps.ops import conv
from purecaps.ops.activation import leaky_squash
from purecaps.ops.autocast import autocast_dtype
from purecaps.ops.cpu_fold import covers_chunk, make_fold
from purecaps.ops.cpu_squash import activate, activation_gradient
from purecaps.ops.geometry import Geometry
from purecaps.ops.reference import norm_dtype


def refuses(u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None = None) -> str | None:
    """Why a problem is left to "conv"."""
    if torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None:
        return "it is being traced; a compiler sees more in one conv2d"
    if u.device.type != "cpu":
        return f"device {u.device}, only cpu is covered"
    dtype = _working_dtype(u)
    if dtype not in (torch.float32, torch.float64, torch.bfloat16):
        return f"{dtype}, only float32, float64 and bfloat16 are covered"
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


def _working_dtype(u: Tensor) -> torch.dtype:
    """What autocast asks for, if it is on; it leaves float64 as it is."""
    automatic = None if u.dtype == torch.float64 else autocast_dtype("cpu")
    return automatic or u.dtype


def caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """As `reference.caps_conv2d`: conv2d itself, since without an activation there is nothing to gain."""
    return conv.caps_conv2d(u, w, geometry)


def caps_block(u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
    """As `reference.caps_block`, for the problems that `refuses` lets through."""
    dtype = _working_dtype(u)
    y: Tensor = ChannelsLast.apply(u.to(dtype), w.to(dtype), geometry, negative_slope, chunk)  # type: ignore[no-untyped-call]
    return y


class ChannelsLast(torch.autograd.Function):
    """(u, w, geometry, negative_slope, chunk) -> squashed capsules."""

    @staticmethod
    def forward(ctx: Any, u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
        kh, kw, C, O, g, n, p = w.shape
        out = geometry.out_size((u.shape[2], u.shape[3]), (kh, kw))
        fold = make_fold(u.shape[5], (kh, kw, C, O, g, n, p), one_position=out == (1, 1))
        x, weights = fold.images(u), fold.weights(w)
        v = convolve(x, weights, geometry, fold.groups)
        a = v.to(norm_dtype(v))  # v itself, unless that is bfloat16
        f, c = activate(fold.squashed_together(a, chunk), negative_slope)
        y = fold.capsules(a.to(v.dtype), O)
        ctx.set_materialize_grads(False)
        ctx.options, ctx.fold = (geometry, negative_slope, chunk), fold
        ctx.save_for_backward(u, w, x, weights, y, f, c)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        (grad,) = grads
        if grad is None:
            return None, None, None, None, None
        if torch.is_grad_enabled() or _is_batched(grad):
            return *_gradients_by_conv(ctx, grad), None, None, None
        fold, (geometry, negative_slope, chunk) = ctx.fold, ctx.options
        u, w, x, weights, y, f, c = ctx.saved_tensors
        dy, y = fold.images(grad).to(f.dtype), fold.images(y).to(f.dtype)
        y_together, dy_together = fold.squashed_together(y, chunk), fold.squashed_together(dy, chunk)
        dv = activation_gradient(y_together, dy_together, f, c, negative_slope).view(dy.shape).to(x.dtype)
        dx, dweights = convolution_gradients(dv, x, weights, geometry, fold.groups, ctx.needs_input_grad[:2])
        grad_u = None if dx is None else _in_order_of(u, fold.capsules(dx, w.shape[2]))
        return grad_u, None if dweights is None else fold.weight_gradient(dweights), None, None, None


def convolve(x: Tensor, weights: Tensor, geometry: Geometry, groups: int) -> Tensor:
    """The plain convolution of images [N, H, W, I] with a kernel [K, kh, kw, I/groups], as [N, H', W', K]."""
    if _covers_the_map(x, weights, geometry, groups):
        v = F.conv2d(_channels_last(_as_positions(x)), _channels_last(_as_one_position(weights)))
        return _rows(v).view(len(x), 1, 1, -1)
    stride, padding, dilation = geometry
    return _rows(F.conv2d(_channels_last(x), _channels_last(weights), None, stride, padding, dilation, groups))


def convolution_gradients(
    grad: Tensor, x: Tensor, weights: Tensor, geometry: Geometry, groups: int, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """Gradients in images [N, H, W, I] and kernel [K, kh, kw, I/groups], those that are wanted."""
    shapes = x.shape, weights.shape
    if _covers_the_map(x, weights, geometry, groups):
        grad, x, weights, geometry = _as_positions(grad), _as_positions(x), _as_one_position(weights), Geometry()
    dx, dweights, _ = torch.ops.aten.convolution_backward(
        *map(_channels_last, (grad, x, weights)), None, *geometry, False, [0, 0], groups, [*wanted, False]
    )
    return _rows(dx).view(shapes[0]) if wanted[0] else None, _rows(dweights).view(shapes[1]) if wanted[1] else None


def _covers_the_map(x: Tensor, weights: Tensor, geometry: Geometry, groups: int) -> bool:
    """Whether the kernel lies on all of the map, once: a product of matrices, one row an image.

    As such it is given to oneDNN, as a kernel of one position on few images of many positions. It takes ten times as
    long for the kernel's gradient of the layer as it is, and MKL's products, without AVX-512 on AMD, twice as long.
    """
    # An empty batch has no positions to be one image of.
    return len(x) > 0 and groups == 1 and x.shape[1:3] == weights.shape[1:3] and geometry.padding == (0, 0)


def _as_positions(images: Tensor) -> Tensor:
    """Images [N, H, W, K] as the positions of one image [1, N, 1, H*W*K], or of 16."""
    # With one thread, torch leaves kernels of one position on fewer than 16 images to MKL; with more, one is faster.
    few = 16 if torch.get_num_threads() == 1 and len(images) % 16 == 0 else 1
    return images.reshape(few, len(images) // few, 1, -1)


def _as_one_position(weights: Tensor) -> Tensor:
    """A kernel [K, kh, kw, I] as [K, 1, 1, kh*kw*I]."""
    return weights.reshape(len(weights), 1, 1, -1)


def _channels_last(rows: Tensor) -> Tensor:
    """Rows [N, H, W, K] as images [N, K, H, W] whose strides say so, even where a size of 1 leaves them open."""
    N, H, W, K = rows.shape
    return rows.contiguous().as_strided((N, K, H, W), (H * W * K, 1, W * K, K))


def _rows(images: Tensor) -> Tensor:
    """Undoes `_channels_last`; a view where torch has kept the order."""
    return images.permute(0, 2, 3, 1).contiguous()


def _in_order_of(u: Tensor, grad: Tensor) -> Tensor:
    # In the order of u the refolding before this layer is a view on the way back too.
    return grad if grad.stride() == u.stride() else torch.empty_like(u).copy_(grad)


def _is_batched(grad: Tensor) -> bool:
    """Whether it stands for many gradients, as in vectorised Jacobians, which do not go through operations in place."""
    functions = torch._C._functorch
    return functions.is_batchedtensor(grad) or functions.is_legacy_batchedtensor(grad)


def _gradients_by_conv(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients by a graph of their own, through "conv": for create_graph, which goes on from it, and batches."""
    geometry, negative_slope, chunk = ctx.options
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # Aliases: were w made from u, the gradient in u itself would count the way through w a second time.
        u, w = (tensor.view_as(tensor) for tensor in ctx.saved_tensors[:2])
        y = leaky_squash(conv.caps_conv2d(u, w, geometry), negative_slope, chunk)
    wanted = [tensor for tensor, needed in zip((u, w), ctx.needs_input_grad, strict=False) if needed]
    found = iter(torch.autograd.grad(y, wanted, grad, create_graph=create_graph))
    grad_u, grad_w = (next(found) if needed else None for needed in ctx.needs_input_grad[:2])
    return grad_u, grad_w
