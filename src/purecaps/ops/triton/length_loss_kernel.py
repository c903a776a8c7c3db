# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""Class scores, their loss, its gradient and the mistakes, from the class capsules' lengths before squashing."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device
from purecaps.ops.triton.parts import squash_factor


@triton.jit
def length_loss_kernel(
    r_ptr,
    labels_ptr,
    loss_ptr,
    wrong_ptr,
    grad_ptr,
    batch,
    a,
    b,
    c,
    POSITIONS: tl.constexpr,
    CLASSES: tl.constexpr,
    MARGIN: tl.constexpr,
    IMAGES: tl.constexpr,
    COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """One program a network goes through its whole batch, so that the mean needs no second launch.

    a, b, c are margin loss's m+, m-, lambda, or cross-entropy's scale and label smoothing.
    """
    z = tl.program_id(0).to(tl.int64)
    image = tl.arange(0, IMAGES)
    k = tl.arange(0, COLUMNS)
    real_class = (k < CLASSES)[None, :]
    losses = tl.zeros((IMAGES,), tl.float32)
    wrongs = tl.zeros((IMAGES,), tl.int32)
    wait_for_inputs(AHEAD)
    for first in range(0, batch, IMAGES):
        inside = first + image < batch
        mask = inside[:, None] & real_class
        row = z * batch + first + image
        at = row[:, None] * (POSITIONS * CLASSES) + k[None, :]
        score = tl.zeros((IMAGES, COLUMNS), tl.float32)
        for position in range(POSITIONS):
            r = tl.load(r_ptr + at + position * CLASSES, mask=mask, other=0.0)
            score += r * squash_factor(r)
        score = score / POSITIONS
        label = tl.load(labels_ptr + row, mask=inside, other=0)
        true = k[None, :] == label[:, None]
        if MARGIN:
            # Unless told otherwise, a GPU's maximum of NaN and 0 is 0: a network that has diverged would have no loss.
            missing = tl.maximum(a - score, 0.0, propagate_nan=tl.PropagateNan.ALL)
            excess = tl.maximum(score - b, 0.0, propagate_nan=tl.PropagateNan.ALL)
            each = tl.where(true, missing * missing, c * excess * excess)
            grad = tl.where(true, -2 * missing, 2 * c * excess)
            losses += tl.sum(tl.where(mask, each, 0.0), axis=1)
        else:
            logit = tl.where(real_class, a * score, float("-inf"))
            top = tl.max(logit, axis=1)
            exp = tl.exp(logit - top[:, None])
            total = tl.sum(exp, axis=1)
            log_p = tl.where(real_class, logit - (top + tl.log(total))[:, None], 0.0)
            target = tl.where(true, 1 - b, 0.0) + b / CLASSES
            grad = a * (exp / total[:, None] - target)
            losses -= tl.where(inside, tl.sum(tl.where(real_class, target * log_p, 0.0), axis=1), 0.0)
        best = tl.argmax(tl.where(real_class, score, float("-inf")), axis=1)
        wrongs += (inside & (best != label)).to(tl.int32)
        grad = grad / (POSITIONS * batch)
        for position in range(POSITIONS):
            r = tl.load(r_ptr + at + position * CLASSES, mask=mask, other=0.0)
            tl.store(grad_ptr + at + position * CLASSES, grad * tl.exp(-r), mask=mask)
    tl.store(loss_ptr + z, tl.sum(losses, axis=0) / batch)
    tl.store(wrong_ptr + z, tl.sum(wrongs, axis=0).to(tl.int64))


@on_its_device
def launch_length_loss(
    r: Tensor, labels: Tensor, loss: Tensor, wrong: Tensor, grad: Tensor, margin: bool, numbers: tuple[float, ...]
) -> None:
    """Writes loss [Z], wrong [Z] and the loss's gradient [Z, B, P, K] of lengths r [Z, B, P, K], all contiguous."""
    networks, batch, positions, classes = r.shape
    columns = triton.next_power_of_2(classes)
    images = max(16, min(triton.next_power_of_2(batch), 4096 // columns, 256))
    length_loss_kernel[(networks,)](
        r,
        labels,
        loss,
        wrong,
        grad,
        batch,
        *numbers,
        POSITIONS=positions,
        CLASSES=classes,
        MARGIN=margin,
        IMAGES=images,
        COLUMNS=columns,
        **launched_ahead(r.device),
        num_warps=8,
    )
