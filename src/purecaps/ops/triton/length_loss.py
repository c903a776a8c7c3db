"""The loss of a batch straight from the class capsules' lengths before squashing, as one operator and one kernel.

A score is the mean over positions of 1 - exp(-r), where r is that length. In plain operations the scores, the loss,
their gradients and the count of mistakes are some forty small kernels, which take as long as a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from purecaps.ops.triton import memory

# Classes that one program holds for a block of images.
MOST_CLASSES = 256


def margin_loss(r: Tensor, labels: Tensor, m_pos: float, m_neg: float, lam: float) -> tuple[Tensor, Tensor]:
    """`purecaps.losses.margin_loss` of each network, and how many of its images are mistaken: [Z] each.

    Args:
        r: lengths before squashing [Z, B, K, H, W].
        labels: the true classes [Z, B], int64.
        m_pos: as for the loss, and so are the others.
    """
    loss, wrong, _ = length_loss(r, labels, True, [m_pos, m_neg, lam])
    return loss, wrong


def cross_entropy(r: Tensor, labels: Tensor, scale: float, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """`purecaps.losses.length_cross_entropy` likewise."""
    loss, wrong, _ = length_loss(r, labels, False, [scale, label_smoothing, 0.0])
    return loss, wrong


@torch.library.custom_op("purecaps::length_loss", mutates_args=())
def length_loss(r: Tensor, labels: Tensor, margin: bool, numbers: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    """Loss [Z], mistakes [Z] and the gradient of r, as [Z, B, H W, K]."""
    from purecaps.ops.triton.length_loss_kernel import launch_length_loss

    Z, _, _, _, _ = r.shape
    rows = _rows(r).contiguous()
    loss = memory.empty((Z,), torch.float32, r.device)
    wrong = torch.empty((Z,), dtype=torch.int64, device=r.device)
    grad = memory.empty(tuple(rows.shape), torch.float32, r.device)
    launch_length_loss(rows, labels.contiguous(), loss, wrong, grad, margin, tuple(numbers))
    return loss, wrong, grad


def _rows(r: Tensor) -> Tensor:
    return r.movedim(2, 4).flatten(2, 3)


@length_loss.register_fake
def _(r: Tensor, labels: Tensor, margin: bool, numbers: Sequence[float]) -> tuple[Tensor, Tensor, Tensor]:
    Z, B, K, H, W = r.shape
    return r.new_empty(Z), r.new_empty(Z, dtype=torch.int64), r.new_empty(Z, B, H * W, K)


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.size = inputs[0].shape[3:]
    ctx.save_for_backward(output[2])
    ctx.set_materialize_grads(False)


def _gradient(ctx: Any, grad_loss: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None, None]:
    if grad_loss is None:
        return None, None, None, None
    (grad,) = ctx.saved_tensors
    if not _is_ones(grad_loss):
        grad = grad * grad_loss.view(-1, 1, 1, 1)
    return grad.unflatten(2, ctx.size).movedim(4, 2), None, None, None


_ones: dict[tuple[torch.device, torch.Size], Tensor] = {}


def ones_of(loss: Tensor) -> Tensor:
    """What `loss.backward` is to begin with: ones that are known as such, so that nothing is multiplied by them.

    In a captured step two kernels less, one that writes them and one that multiplies.
    """
    key = (loss.device, loss.shape)
    if key not in _ones:
        ones = torch.ones_like(loss)
        if loss.is_cuda and torch.cuda.is_current_stream_capturing():  # not there before the graph is replayed
            return ones
        _ones[key] = ones
    return _ones[key]


def _is_ones(gradient: Tensor) -> bool:
    """Whether these are ones of `ones_of`, or a view of them."""
    if type(gradient) is not Tensor or torch.compiler.is_compiling():
        return False
    try:
        place = gradient.data_ptr()
    except RuntimeError:  # a wrapper of torch.func has no memory
        return False
    return any(each.data_ptr() == place for each in _ones.values() if each.device == gradient.device)


length_loss.register_autograd(_gradient, setup_context=_context)
