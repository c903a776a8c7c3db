"""The loss of a batch: of a network's scores, of what it gives when guided by the labels, or of capsule radii."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from purecaps.losses import length_cross_entropy, margin_loss, spread_loss
from purecaps.models import PCapsNet
from purecaps.models.guided import is_guided
from purecaps.models.stack import ModelStack
from purecaps.ops.triton.length_loss import MOST_CLASSES
from purecaps.ops.triton.length_loss import cross_entropy as fused_cross_entropy
from purecaps.ops.triton.length_loss import margin_loss as fused_margin_loss
from purecaps.train.recipe import Recipe
from purecaps.train.schedule import spread_margin


def loss_and_mistakes(
    model: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe, step: int | Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The loss of a batch and how many of its images are mistaken; [S] each for a stack of networks.

    Args:
        model: a network, or a stack of them.
        images: [B, C, H, W]; for a stack [S, B, C, H, W].
        labels: int64 [B] or [S, B]; or the probabilities of all classes, float32 [B, K] or [S, B, K], of which the
            most probable one is then what is mistaken.
        recipe: which loss; of probabilities cross-entropy alone.
        step: the training step, for losses that change; None takes the last one.
    """
    stacked = isinstance(model, ModelStack)
    network = model.template if isinstance(model, ModelStack) else model
    if is_guided(network):
        return _guided(model, images, labels, recipe, step)
    with autocast(recipe, images.device):
        radii = None if labels.is_floating_point() else _radii(model, network, recipe, images)
        scores = model(images) if radii is None else None
    if scores is None:
        assert radii is not None
        loss, wrong = loss_of_radii(recipe, radii if stacked else radii[None], labels if stacked else labels[None])
        return (loss, wrong) if stacked else (loss.squeeze(0), wrong.squeeze(0))
    return _of_each(model, recipe, step)(scores.float(), labels), _mistakes(scores, labels)


def _guided(
    model: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe, step: int | Tensor | None
) -> tuple[Tensor, Tensor]:
    """The recipe's loss of every set of scores, and the network's own penalty."""
    measure = _of_each(model, recipe, step)
    assert is_guided(model)
    with autocast(recipe, images.device):
        scores, penalty = model.guided(images, labels)
    loss = sum((measure(each.float(), labels) for each in scores), start=penalty.float())
    return loss, _mistakes(scores[0], labels)


def _of_each(model: nn.Module, recipe: Recipe, step: int | Tensor | None) -> Callable[[Tensor, Tensor], Tensor]:
    """From scores and labels to the loss, or to each network's where there are several."""
    measure = functools.partial(loss_of, recipe, step=step)
    return torch.func.vmap(measure) if isinstance(model, ModelStack) else measure


@torch.no_grad()
def _mistakes(scores: Tensor, labels: Tensor) -> Tensor:
    classes = labels.argmax(dim=-1) if labels.is_floating_point() else labels
    return (scores.argmax(dim=-1) != classes).sum(dim=-1)


def loss_of(recipe: Recipe, scores: Tensor, labels: Tensor, step: int | Tensor | None = None) -> Tensor:
    """The recipe's loss of class scores [B, K] at a step; None is the last one."""
    if recipe.loss == "margin":
        return margin_loss(scores, labels, m_pos=recipe.m_pos, m_neg=recipe.m_neg, lam=recipe.lam)
    if recipe.loss == "spread":
        return spread_loss(scores, labels, margin=spread_margin(recipe, recipe.steps if step is None else step))
    return length_cross_entropy(scores, labels, scale=recipe.scale, label_smoothing=recipe.label_smoothing)


def _radii(model: nn.Module, network: nn.Module, recipe: Recipe, images: Tensor) -> Tensor | None:
    """`PCapsNet.radii` where the loss has a kernel that starts from them."""
    if recipe.loss == "spread":
        return None
    if not isinstance(network, PCapsNet) or network.head.pool != "mean" or network.num_classes > MOST_CLASSES:
        return None
    assert isinstance(model, ModelStack | PCapsNet)
    return model.radii(images)


def loss_of_radii(recipe: Recipe, radii: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """As `loss_of` on the scores of radii [S, B, K, H', W'], and how many images are mistaken: [S] each."""
    if recipe.loss == "margin":
        return fused_margin_loss(radii, labels, recipe.m_pos, recipe.m_neg, recipe.lam)
    return fused_cross_entropy(radii, labels, recipe.scale, recipe.label_smoothing)


def autocast(recipe: Recipe, device: torch.device) -> contextlib.AbstractContextManager[Any]:
    if recipe.precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)
    return contextlib.nullcontext()
