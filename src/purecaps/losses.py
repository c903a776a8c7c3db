"""Losses on class scores, where a score is a capsule's length."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops.reference import norm_dtype
from purecaps.ops.validation import check_floating, shape_text

LENGTH_SCALE = 20.0  # what the default recipe multiplies lengths with, and all that take a softmax of them otherwise


def margin_loss(scores: Tensor, target: Tensor, *, m_pos: float = 0.5, m_neg: float = 0.1, lam: float = 0.5) -> Tensor:
    """The paper's margin loss: T max(0, m+ - s)^2 + lambda (1 - T) max(0, s - m-)^2.

    Summed over classes, averaged over the batch. The defaults are the paper's for MNIST.

    Args:
        scores: class scores [B, K], capsule lengths.
        target: the true classes [B], int64; a number that is no class makes an image of none.
        m_pos: the length that the true class's capsule should exceed.
        m_neg: the length that all other capsules should stay below.
        lam: weight of the other classes' part.
    """
    _check(scores, target)
    scores = scores.to(norm_dtype(scores))  # squares of small differences vanish in half precision
    true = (target[:, None] == torch.arange(scores.shape[1], device=scores.device)).to(scores.dtype)
    missing = F.relu(m_pos - scores).square()
    excess = F.relu(scores - m_neg).square()
    return (true * missing + lam * (1 - true) * excess).sum(dim=1).mean()


def spread_loss(scores: Tensor, target: Tensor, *, margin: float | Tensor = 0.9) -> Tensor:
    """Sum over the wrong classes i of max(0, margin - (s_target - s_i))^2 (Hinton et al. 2018, equation 3).

    Summed over classes, averaged over the batch. Their margin rises from 0.2 to 0.9 while a network is trained, which
    keeps early capsules from dying.

    Args:
        scores: class scores [B, K], activations in [0, 1].
        target: the true classes [B], int64.
        margin: how far the true class's activation should be above all others; a scalar [] where it is a tensor.
    """
    _check(scores, target)
    scores = scores.to(norm_dtype(scores))
    true = target[:, None] == torch.arange(scores.shape[1], device=scores.device)
    of_target = scores.masked_fill(~true, 0.0).sum(dim=1, keepdim=True)
    short = F.relu(margin - of_target + scores).square()
    return short.masked_fill(true, 0.0).sum(dim=1).mean()


def length_cross_entropy(
    scores: Tensor, target: Tensor, *, scale: float = 10.0, label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy with the softmax taken of `scale` times the capsule lengths.

    Lengths lie in [0, 1), too close together for a softmax to become sure of anything: the scale spreads them.

    Args:
        scores: class scores [B, K], capsule lengths.
        target: the true classes [B], int64, or the probabilities of all classes [B, K].
        scale: what lengths are multiplied with.
        label_smoothing: share of the target that is spread over all classes.
    """
    if target.is_floating_point():
        _check_probabilities(scores, target)
    else:
        _check(scores, target)
    return F.cross_entropy(scale * scores, target, label_smoothing=label_smoothing)


def _check(scores: Tensor, target: Tensor) -> None:
    _check_scores(scores)
    if target.dtype != torch.int64 or target.shape != scores.shape[:1]:
        raise ConfigError(
            f"target: expected int64 class numbers [{scores.shape[0]}], one for each row of scores, "
            f"got {target.dtype} {shape_text(target.shape)}"
        )


def _check_probabilities(scores: Tensor, target: Tensor) -> None:
    _check_scores(scores)
    if target.shape != scores.shape:
        raise ConfigError(
            f"target: expected int64 class numbers [{scores.shape[0]}] or probabilities {shape_text(scores.shape)}, "
            f"got {target.dtype} {shape_text(target.shape)}"
        )


def _check_scores(scores: Tensor) -> None:
    check_floating(scores, "scores")
    if scores.dim() != 2:
        raise ConfigError(f"scores: expected [B, K], got {shape_text(scores.shape)}")
