"""The fused operations as torch.library operators, so that torch.compile and torch.export see them.

Operators take capsules without g and with an axis Z of independent problems in front; see problem.py. Weights keep
their g, so that their gradients have their strides, as optimisers that fuse updates ask for. Triton is imported on the
first call: defining the operators does not need it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops.geometry import Geometry
from purecaps.ops.triton import memory
from purecaps.ops.triton.problem import as_logical, as_rows, checked, problem_of

PRECISIONS = ("auto", "tf32", "ieee")


def product_precision(precision: str) -> str:
    """How float32 products are rounded; "auto" does as conv2d would on a GPU (torch.backends.cudnn)."""
    if precision != "auto":
        return precision
    followed = torch.backends.cudnn.conv.fp32_precision  # type: ignore[attr-defined]
    return "tf32" if followed == "tf32" else "ieee"


def geometry_of(geometry: Sequence[int]) -> Geometry:
    stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w = geometry
    return Geometry((stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w))


@torch.library.custom_op("purecaps::caps_block_forward", mutates_args=())
def block_forward(
    u: Tensor, w: Tensor, geometry: Sequence[int], norm: Sequence[int], slope: float, precision: str
) -> tuple[Tensor, Tensor]:
    """Squashed capsules y [Z, B, O, H', W', m, p] and lengths r [Z, B, O, H', W', m / norm[0], p / norm[1]].

    Args:
        u: input capsules [Z, B, C, H, W, m, n].
        w: capsule kernels [Z, kh, kw, C, O, g, n, p] with g = 1.
        geometry: stride, padding and dilation, a (height, width) pair each, one after the other.
        norm: rows and columns that one squash spans.
        slope: leaky ReLU's.
        precision: of float32 products: "auto", "tf32" or "ieee".
    """
    from purecaps.ops.triton.forward import launch_forward

    kernel = w.squeeze(5)
    problem = checked(problem_of(u, kernel, geometry_of(geometry), (norm[0], norm[1])))
    y, r = launch_forward(u, kernel, problem, slope, product_precision(precision), activate=True)
    assert r is not None
    return y, r


@block_forward.register_fake
def _(
    u: Tensor, w: Tensor, geometry: Sequence[int], norm: Sequence[int], slope: float, precision: str
) -> tuple[Tensor, Tensor]:
    problem = problem_of(u, w.squeeze(5), geometry_of(geometry), (norm[0], norm[1]))
    y = u.new_empty((problem.Z, problem.B, *problem.out, problem.m, problem.O, problem.p))
    return as_logical(y), as_logical(u.new_empty(problem.r_shape, dtype=torch.float32))


@torch.library.custom_op("purecaps::caps_block_backward", mutates_args=())
def block_backward(
    grad_y: Tensor | None,
    grad_r: Tensor | None,
    u: Tensor,
    w: Tensor,
    y: Tensor,
    r: Tensor,
    geometry: Sequence[int],
    norm: Sequence[int],
    slope: float,
    precision: str,
    need_u: bool,
    need_w: bool,
) -> tuple[Tensor, Tensor]:
    """Gradients of u and w; an empty tensor in the place of one that is not needed."""
    from purecaps.ops.triton.activation_gradient import launch_activation_gradient
    from purecaps.ops.triton.input_gradient import gradient_of_input
    from purecaps.ops.triton.weight_gradient import launch_weight_gradient

    kernel = w.squeeze(5)
    problem = problem_of(u, kernel, geometry_of(geometry), (norm[0], norm[1]))
    rounding = product_precision(precision)
    grad_v = launch_activation_gradient(y, r, grad_y, grad_r, problem, slope)
    grad_u = gradient_of_input(grad_v, kernel, problem, u.dtype, rounding) if need_u else u.new_empty(0)
    grad_w = launch_weight_gradient(u, grad_v, memory.empty_as(w), problem, rounding) if need_w else w.new_empty(0)
    return grad_u, grad_w


@block_backward.register_fake
def _(
    grad_y: Tensor | None,
    grad_r: Tensor | None,
    u: Tensor,
    w: Tensor,
    y: Tensor,
    r: Tensor,
    geometry: Sequence[int],
    norm: Sequence[int],
    slope: float,
    precision: str,
    need_u: bool,
    need_w: bool,
) -> tuple[Tensor, Tensor]:
    return _fake_gradients(u, w, need_u, need_w)


def _fake_gradients(u: Tensor, w: Tensor, need_u: bool, need_w: bool) -> tuple[Tensor, Tensor]:
    grad_u = as_logical(u.new_empty(as_rows(u).shape)) if need_u else u.new_empty(0)
    return grad_u, memory.empty_as(w) if need_w else w.new_empty(0)


def _block_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    u, w, *ctx.options = inputs
    ctx.save_for_backward(u, w, *output)
    ctx.set_materialize_grads(False)


def _block_gradient(ctx: Any, grad_y: Tensor | None, grad_r: Tensor | None) -> tuple[Tensor | None, ...]:
    need_u, need_w = ctx.needs_input_grad[:2]
    if grad_y is None and grad_r is None:
        return (None,) * 6
    grad_u, grad_w = block_backward(grad_y, grad_r, *ctx.saved_tensors, *ctx.options, need_u, need_w)
    return (grad_u if need_u else None, grad_w if need_w else None, None, None, None, None)


block_forward.register_autograd(_block_gradient, setup_context=_block_context)


@torch.library.custom_op("purecaps::caps_conv_forward", mutates_args=())
def conv_forward(u: Tensor, w: Tensor, geometry: Sequence[int], precision: str) -> Tensor:
    """Capsules [Z, B, O, H', W', m, p], without an activation; arguments as for the block."""
    from purecaps.ops.triton.forward import launch_forward

    kernel = w.squeeze(5)
    problem = checked(problem_of(u, kernel, geometry_of(geometry)))
    return launch_forward(u, kernel, problem, 1.0, product_precision(precision), activate=False)[0]


@conv_forward.register_fake
def _(u: Tensor, w: Tensor, geometry: Sequence[int], precision: str) -> Tensor:
    problem = problem_of(u, w.squeeze(5), geometry_of(geometry))
    return as_logical(u.new_empty((problem.Z, problem.B, *problem.out, problem.m, problem.O, problem.p)))


@torch.library.custom_op("purecaps::caps_conv_backward", mutates_args=())
def conv_backward(
    grad_v: Tensor, u: Tensor, w: Tensor, geometry: Sequence[int], precision: str, need_u: bool, need_w: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of u and w; an empty tensor in the place of one that is not needed."""
    from purecaps.ops.triton.input_gradient import gradient_of_input
    from purecaps.ops.triton.weight_gradient import launch_weight_gradient

    kernel = w.squeeze(5)
    problem = problem_of(u, kernel, geometry_of(geometry))
    rounding = product_precision(precision)
    rows = as_rows(grad_v).contiguous()
    grad_u = gradient_of_input(rows, kernel, problem, u.dtype, rounding) if need_u else u.new_empty(0)
    grad_w = launch_weight_gradient(u, rows, memory.empty_as(w), problem, rounding) if need_w else w.new_empty(0)
    return grad_u, grad_w


@conv_backward.register_fake
def _(
    grad_v: Tensor, u: Tensor, w: Tensor, geometry: Sequence[int], precision: str, need_u: bool, need_w: bool
) -> tuple[Tensor, Tensor]:
    return _fake_gradients(u, w, need_u, need_w)


def _conv_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    u, w, *ctx.options = inputs
    ctx.save_for_backward(u, w)


def _conv_gradient(ctx: Any, grad_v: Tensor) -> tuple[Tensor | None, ...]:
    need_u, need_w = ctx.needs_input_grad[:2]
    grad_u, grad_w = conv_backward(grad_v, *ctx.saved_tensors, *ctx.options, need_u, need_w)
    return (grad_u if need_u else None, grad_w if need_w else None, None, None)


conv_forward.register_autograd(_conv_gradient, setup_context=_conv_context)


def refuse_second_derivatives(operator: Any) -> None:
    """Says what to do instead where a gradient is differentiated again."""

    def refuse(ctx: Any, *grads: Any) -> None:
        raise ConfigError(
            'impl: "triton" has no second derivatives, and one was asked for (create_graph=True); use "conv"'
        )

    operator.register_autograd(refuse, setup_context=lambda ctx, inputs, output: None)


def _stacked(value: Any, dim: Any, size: int) -> Any:
    """A vmapped tensor with its batch axis folded into Z; one without that axis is repeated, by a stride of 0."""
    if isinstance(value, list) and value and isinstance(value[0], Tensor):
        return [_stacked(each, each_dim, size) for each, each_dim in zip(value, dim, strict=True)]
    if not isinstance(value, Tensor):
        return value
    front = value.expand(size, *value.shape) if dim is None else value.movedim(dim, 0)
    return front.flatten(0, 1)


def fold_vmap(operator: Any) -> None:
    """vmap over networks: their axis becomes part of Z, and one launch runs them all."""

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        size = info.batch_size
        out = operator(*(_stacked(arg, dim, size) for arg, dim in zip(args, in_dims, strict=True)))
        split = torch.utils._pytree.tree_map(
            lambda each: each.unflatten(0, (size, -1)) if each.dim() > 1 else each.expand(size, 0), out
        )
        return split, torch.utils._pytree.tree_map(lambda _: 0, split)

    operator.register_vmap(rule)


for _operator in (block_forward, block_backward, conv_forward, conv_backward):
    fold_vmap(_operator)
for _operator in (block_backward, conv_backward):
    refuse_second_derivatives(_operator)
