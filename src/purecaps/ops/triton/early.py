"""The gradients of a run's first two layers by one kernel in CUDA C++, ops/cuda/two_layers.py, where it covers them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from purecaps.ops.cuda import device as cuda_device
from purecaps.ops.cuda import two_layers
from purecaps.ops.cuda.two_layers import TwoLayers
from purecaps.ops.geometry import Pair
from purecaps.ops.triton import memory
from purecaps.ops.triton.problem import Problem, as_rows

if TYPE_CHECKING:
    from purecaps.ops.triton.stack import Beside

# Whether to: benchmarks/profile_step.py --apart times a step without.
TOGETHER = True
# Second layers of fewer numbers, as pcapsnet2 and 3 have them: off until a GPU has timed it (--narrow there).
NARROW, LEAST_COLUMNS = False, 32


def early_layers(u: Tensor, problems: Sequence[Problem], below: Pair, precision: str, need_u: bool) -> TwoLayers | None:
    """The first two layers as the kernel does them; None where a kernel for each layer has to.

    Args:
        u: the first layer's input [Z, B, C, H, W, m, n].
        problems: the sizes of all layers, of which there are two or more.
        below: rows and columns of the second layer's input capsules that the squash below spans.
        precision: of float32 products.
        need_u: the gradient of u is asked for.
    """
    if not TOGETHER or u.dtype not in two_layers.FLAGS or (u.dtype == torch.float32 and precision != "tf32"):
        return None
    if not two_layers.covers_second(problems[1], below) or cuda_device.missing(u.device):
        return None
    if not NARROW and (problems[1].n < two_layers.WIDTH or problems[1].O * problems[1].p < LEAST_COLUMNS):
        return None
    aligned = u.data_ptr() % 16 == 0
    image = two_layers.image_of(problems[0], u) if aligned and not need_u else None
    shared = cuda_device.shared_memory(u.device)
    for layers in (TwoLayers(problems[1], image, u.dtype), TwoLayers(problems[1], None, u.dtype)):
        if layers.shared_bytes <= shared:
            layers = layers.side_by_side(shared, cuda_device.multiprocessors(u.device))
            return None if two_layers.refused(layers, u.device) else layers
    return None


def launch_early(
    layers: TwoLayers,
    u: Tensor,
    input: Tensor,
    lengths: Tensor,
    slope: float,
    grad_v: Tensor,
    kernel: Tensor,
    gradients: Sequence[Tensor],
    beside: Beside,
) -> Tensor | None:
    """Writes the second layer's weight gradient, and with `layers.first` the first layer's.

    Args:
        layers: as `early_layers` gave them.
        u: the first layer's input.
        input: the second layer's [Z, B, C, H, W, m, n], in memory as rows.
        lengths: of the input capsules before squashing.
        slope: leaky ReLU's, of the first layer.
        grad_v: gradient of the second layer's convolution, rows [Z, B, H', W', m, O, p].
        kernel: the second layer's, (o, p) fastest in memory.
        gradients: memory for those of the first two layers' kernels.
        beside: for sums to run side by side.

    Returns:
        Without `layers.first` the gradient of the first layer's convolution, as rows [Z, B, H, W, m, C, n].
    """
    problem, device = layers.second, u.device
    blocks = layers.blocks(cuda_device.multiprocessors(device))
    # Contiguous but where hooks on saved tensors have copied them.
    rows, lengths = as_rows(input).contiguous(), as_rows(lengths).contiguous()
    kernel = kernel.permute(0, 1, 2, 5, 3, 6, 4, 7).contiguous()
    parts = memory.empty((blocks, gradients[1].numel()), torch.float32, device)
    if layers.first is None:
        given, first_parts = memory.empty(tuple(rows.shape), u.dtype, device), parts
    else:
        given, first_parts = rows, memory.empty((blocks, gradients[0].numel()), torch.float32, device)
    beside.hold(parts, first_parts)
    two_layers.launch(
        layers, blocks, grad_v, kernel, rows, lengths, u, given, parts, first_parts, problem.B, blocks, slope
    )
    if layers.first is None:
        beside.run(_summing(parts, gradients[1]))
        return given
    beside.run(_summing(first_parts, gradients[0]))
    _summing(parts, gradients[1])()
    return None


def _summing(parts: Tensor, total: Tensor) -> Callable[[], None]:
    from purecaps.ops.triton.sum_parts import sum_turned_parts

    return functools.partial(sum_turned_parts, parts, total)
