"""A run of capsule blocks, each fed by the one before, as one operator with one backward pass.

Alone, a block has to hand its gradient on as that of its output. In a run, the kernel that computes the gradient of a
layer's input goes on through the activation below, and weight gradients run beside it on a second stream.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from purecaps.ops.geometry import Geometry, Pair
from purecaps.ops.triton import memory
from purecaps.ops.triton.autograd import fold_vmap, geometry_of, product_precision, refuse_second_derivatives
from purecaps.ops.triton.early import early_layers, launch_early
from purecaps.ops.triton.problem import Problem, as_logical, as_rows, checked, power_of_two, problem_of

# The widest capsules of an input that one program of the input gradient holds.
MOST_COLUMNS = 128
# For weight gradients, beside the current one. With one stream each of them waits for the one before, and a step of
# pcapsnet2 ends with 25 us of them alone (benchmarks/profile_step.py --streams).
STREAMS = 3


class Layer(NamedTuple):
    """What a block does besides its kernel.

    Args:
        geometry: stride, padding and dilation.
        norm: rows and columns of the output capsules that one squash spans.
        below: the same of the input capsules, for the squash that made them; (0, 0) in the first layer.
        slope: leaky ReLU's.
    """

    geometry: Geometry
    norm: Pair
    below: Pair
    slope: float


def caps_stack(u: Tensor, weights: Sequence[Tensor], layers: Sequence[Layer], precision: str) -> tuple[Tensor, Tensor]:
    """The last block's squashed capsules [Z, B, O, H', W', m, p] and their lengths before squashing.

    Args:
        u: input capsules [Z, B, C, H, W, m, n].
        weights: each layer's capsule kernels [Z, kh, kw, C, O, g, n, p] with g = 1; products are made in u's dtype.
        layers: the rest of each layer.
        precision: of float32 products: "auto", "tf32" or "ieee".
    """
    # Not whether a tensor requires gradients: under vmap they do not show it.
    outputs = stack_forward(u, list(weights), *encoded(layers), precision, torch.is_grad_enabled())
    return outputs[len(layers) - 1], outputs[2 * len(layers) - 1]


def refold_rows(y: Tensor, n: int) -> Tensor | None:
    """Capsules y [Z, B, O, H, W, m, p] refolded row-major to columns of n, without moving data; None where it must."""
    Z, B, O, H, W, m, p = y.shape
    if n == p:
        return y
    if O > 1 or (m * p) % n:
        return None
    return as_logical(as_rows(y).reshape(Z, B, H, W, m * p // n, 1, n))


def encoded(layers: Sequence[Layer]) -> tuple[list[int], list[float]]:
    numbers: list[int] = []
    for layer in layers:
        geometry = layer.geometry
        numbers += [*geometry.stride, *geometry.padding, *geometry.dilation, *layer.norm, *layer.below]
    return numbers, [float(layer.slope) for layer in layers]


def _decoded(numbers: Sequence[int], slopes: Sequence[float]) -> list[Layer]:
    found = []
    for index, slope in enumerate(slopes):
        part = numbers[10 * index : 10 * index + 10]
        found.append(Layer(geometry_of(part[:6]), (part[6], part[7]), (part[8], part[9]), slope))
    return found


def _input_of(y: Tensor, w: Tensor) -> Tensor:
    refolded = refold_rows(y, w.shape[6])
    assert refolded is not None  # whoever builds a run sees to it
    return refolded


@torch.library.custom_op("purecaps::caps_stack_forward", mutates_args=())
def stack_forward(
    u: Tensor, weights: list[Tensor], numbers: Sequence[int], slopes: Sequence[float], precision: str, turn: bool
) -> list[Tensor]:
    """All layers' capsules y, all their lengths r, and with `turn` all kernels as the backward pass reads them best."""
    from purecaps.ops.triton.forward import launch_forward
    from purecaps.ops.triton.kernel_copies import can_copy, can_turn, copy_kernels, turn_kernels

    rounding = product_precision(precision)
    layers = _decoded(numbers, slopes)
    beside = Beside(u.device, 1)
    cast = [w if w.dtype == u.dtype else torch.empty_like(w, dtype=u.dtype) for w in weights]
    _copy(weights, cast, can_copy, copy_kernels)
    turned = [_turned(w, u.dtype, turn and index > 0) for index, w in enumerate(weights)]
    ys: list[Tensor] = []
    rs: list[Tensor] = []
    for index, layer in enumerate(layers):
        if index:
            u = _input_of(ys[-1], weights[index])
        if turn and 0 < index == len(layers) - 1:
            # For the backward pass: beside the last layer, which has few programs. Others fill the device.
            beside.run(functools.partial(_copy, weights, turned, can_turn, turn_kernels))
        kernel = cast[index].squeeze(5)
        problem = checked(problem_of(u, kernel, layer.geometry, layer.norm))
        y, r = launch_forward(u, kernel, problem, layer.slope, rounding, activate=True)
        assert r is not None
        ys.append(y)
        rs.append(r)
    beside.join()
    return [*ys, *rs, *turned]


def _copy(
    weights: Sequence[Tensor],
    targets: Sequence[Tensor],
    covers: Callable[[Tensor], bool],
    together: Callable[[Sequence[Tensor], Sequence[Tensor]], None],
) -> None:
    """Copies kernels into targets that are others and not empty: `together` what is covered, what is not one by one."""
    pairs = [(w, into) for w, into in zip(weights, targets, strict=True) if into is not w and into.numel()]
    covered = [pair for pair in pairs if covers(pair[0])]
    if covered:
        together(*zip(*covered, strict=True))
    for w, into in pairs:
        if not covers(w):
            into.copy_(w)


def _turned(w: Tensor, dtype: torch.dtype, wanted: bool) -> Tensor:
    """Memory for a kernel as the input gradient reads it best, (o, p) fastest: the sum runs over them."""
    if not wanted:
        return torch.empty(0, dtype=dtype, device=w.device)
    Z, kh, kw, C, O, g, n, p = w.shape
    return memory.empty((Z, kh, kw, g, C, n, O, p), dtype, w.device).permute(0, 1, 2, 4, 6, 3, 5, 7)


@stack_forward.register_fake
def _(
    u: Tensor, weights: list[Tensor], numbers: Sequence[int], slopes: Sequence[float], precision: str, turn: bool
) -> list[Tensor]:
    ys: list[Tensor] = []
    rs: list[Tensor] = []
    dtype, inputs = u.dtype, u
    for index, layer in enumerate(_decoded(numbers, slopes)):
        if index:
            inputs = _input_of(ys[-1], weights[index])
        problem = problem_of(inputs, weights[index].squeeze(5), layer.geometry, layer.norm)
        shape = (problem.Z, problem.B, *problem.out, problem.m, problem.O, problem.p)
        ys.append(as_logical(u.new_empty(shape, dtype=dtype)))
        rs.append(as_logical(u.new_empty(problem.r_shape, dtype=torch.float32)))
    return [*ys, *rs, *(_turned(w, dtype, turn and index > 0) for index, w in enumerate(weights))]


@torch.library.custom_op("purecaps::caps_stack_backward", mutates_args=())
def stack_backward(
    grad_y: Tensor | None,
    grad_r: Tensor | None,
    u: Tensor,
    weights: list[Tensor],
    saved: list[Tensor],
    numbers: Sequence[int],
    slopes: Sequence[float],
    precision: str,
    need_u: bool,
) -> list[Tensor]:
    """Gradients of u (empty where it is not needed) and of all weights."""
    from purecaps.ops.triton.activation_gradient import launch_activation_gradient
    from purecaps.ops.triton.input_gradient import Below, launch_input_gradient
    from purecaps.ops.triton.weight_gradient import launch_weight_gradient

    rounding, layers = product_precision(precision), _decoded(numbers, slopes)
    ys, rs, turned = (saved[part * len(layers) : (part + 1) * len(layers)] for part in range(3))
    inputs = [u, *(_input_of(y, w) for y, w in zip(ys[:-1], weights[1:], strict=True))]
    problems = [
        problem_of(given, w.squeeze(5), layer.geometry, layer.norm)
        for given, w, layer in zip(inputs, weights, layers, strict=True)
    ]
    gradients = [memory.empty_as(w) for w in weights]
    beside = Beside(u.device, STREAMS)
    kept = [launch_activation_gradient(ys[-1], rs[-1], grad_y, grad_r, problems[-1], layers[-1].slope)]
    early = None
    if len(layers) > 1 and turned[1].numel():
        early = early_layers(u, problems, layers[1].below, rounding, need_u)
    for index in reversed(range(len(layers))):
        grad_v = kept[-1]
        if index == 1 and early is not None:
            lengths = _lengths(rs[0], problems[1], layers[1].below)
            grad = launch_early(
                early, u, inputs[1], lengths, layers[0].slope, grad_v, turned[1], gradients[:2], beside
            )  # fmt: skip
            if grad is None:
                break
            kept.append(grad)
            continue
        weigh = functools.partial(
            launch_weight_gradient, inputs[index], grad_v, gradients[index], problems[index], rounding
        )
        # The first layer's comes last, when this stream has nothing else to do.
        if index or need_u:
            beside.run(weigh)
        else:
            weigh()
        if index:
            below = Below(
                inputs[index], _lengths(rs[index - 1], problems[index], layers[index].below),
                layers[index - 1].slope, layers[index].below,
            )  # fmt: skip
            kernel = (turned[index] if turned[index].numel() else weights[index].to(u.dtype)).squeeze(5)
            kept.append(launch_input_gradient(grad_v, kernel, problems[index], u.dtype, rounding, below))
    if need_u:
        kernel = weights[0].to(u.dtype).squeeze(5)
        grad_u = as_logical(launch_input_gradient(kept[-1], kernel, problems[0], u.dtype, rounding))
    else:
        grad_u = u.new_empty(0)
    beside.join()
    return [grad_u, *gradients]


def _lengths(r: Tensor, problem: Problem, norm: Pair) -> Tensor:
    """Lengths of the layer below, as they lie in the capsules of this layer's input."""
    rows = as_rows(r).reshape(
        problem.Z, problem.B, problem.H, problem.W, problem.m // norm[0], problem.C, problem.n // norm[1]
    )
    return as_logical(rows)


@stack_backward.register_fake
def _(
    grad_y: Tensor | None,
    grad_r: Tensor | None,
    u: Tensor,
    weights: list[Tensor],
    saved: list[Tensor],
    numbers: Sequence[int],
    slopes: Sequence[float],
    precision: str,
    need_u: bool,
) -> list[Tensor]:
    grad_u = as_logical(u.new_empty(as_rows(u).shape)) if need_u else u.new_empty(0)
    return [grad_u, *(memory.empty_as(w) for w in weights)]


def _context(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    u, weights, *ctx.options, _ = inputs
    ctx.count = len(weights)
    ctx.save_for_backward(u, *weights, *output)
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, grads: list[Tensor | None]) -> tuple[Any, ...]:
    count = ctx.count
    u, *rest = ctx.saved_tensors
    grad_y, grad_r = grads[count - 1], grads[2 * count - 1]
    if grad_y is None and grad_r is None:
        return None, [None] * count, None, None, None, None
    need_u = ctx.needs_input_grad[0]
    grad_u, *grad_weights = stack_backward(grad_y, grad_r, u, rest[:count], rest[count:], *ctx.options, need_u)
    return (grad_u if need_u else None), grad_weights, None, None, None, None


stack_forward.register_autograd(_gradient, setup_context=_context)


class Beside:
    """Work on other streams of a CUDA device, which take turns; elsewhere, work done at once.

    Whatever it writes must have been allocated before on the current stream, and be held until `join`.
    """

    def __init__(self, device: torch.device, streams: int) -> None:
        self._streams = _other_streams(device, streams) if device.type == "cuda" else ()
        self._given = 0
        self._held: list[Tensor] = []

    def hold(self, *tensors: Tensor) -> None:
        """Keeps memory of the current stream from being used again before `join`."""
        self._held += tensors

    def run(self, work: Callable[[], Any]) -> None:
        """Starts work that may depend on all that the current stream was given so far."""
        if not self._streams:
            work()
            return
        stream = self._streams[self._given % len(self._streams)]
        self._given += 1
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            work()

    def join(self) -> None:
        """Makes the current stream wait for all that was started."""
        # A stream that was given nothing is no part of a graph being captured, and must not be waited for.
        for stream in self._streams[: self._given]:
            torch.cuda.current_stream().wait_stream(stream)
        self._held.clear()


@functools.cache
def _other_streams(device: torch.device, count: int) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(count))


def fits(norm: Pair | None, m: int, n: int) -> bool:
    """Whether the input gradient can hold an input's capsules of m x n, squashed in parts of `norm`, whole."""
    return norm is not None and power_of_two(n) <= MOST_COLUMNS and power_of_two(m) * power_of_two(n) <= 4096


fold_vmap(stack_forward)
fold_vmap(stack_backward)
refuse_second_derivatives(stack_backward)
