"""Projected gradient descent of Madry et al. (2018), arXiv 1706.06083: many small steps that stay within eps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from purecaps.data.random import fold, key, uniform
from purecaps.errors import ConfigError
from purecaps.evaluate.attacks.attack import Attack
from purecaps.evaluate.attacks.gradient import check_eps, check_images, input_gradient
from purecaps.evaluate.attacks.loss import AttackLoss, default_loss, wrong_lead
from purecaps.evaluate.classification import in_eval_mode

PGD_STEPS = 40


def pgd(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    eps: float,
    *,
    steps: int = PGD_STEPS,
    step_size: float | None = None,
    random_start: bool = True,
    restarts: int = 1,
    seed: int = 0,
    first: int = 0,
    loss: AttackLoss | None = None,
) -> Tensor:
    """Images moved by sign steps up the loss, each step brought back to within eps of the image and to [0, 1].

    Args:
        model: maps images [B, C, H, W] in [0, 1] to scores [B, K].
        images: float [B, C, H, W] in [0, 1].
        labels: int64 [B], the true classes.
        eps: the most that a pixel changes by.
        steps: how many steps to take.
        step_size: of each; None takes 2.5 eps / steps, Madry's rule, with which any place in the box can be reached.
        random_start: begin at a random place within eps, not at the image.
        restarts: how many such places to begin at; of what each leads to, an image keeps that by which the best wrong
            score is the furthest above the true one.
        seed: of those places.
        first: the number of the first image in its set: an image's start depends on it, not on the batch it is in.
        loss: what is to rise; None takes `default_loss(model)`.
    """
    check_eps(eps)
    check_images(images, labels)
    if steps < 1:
        raise ConfigError(f"steps: expected an int >= 1, got {steps}")
    size = 2.5 * eps / steps if step_size is None else step_size
    if not 0 <= size < math.inf:
        raise ConfigError(f"step_size: expected a finite number >= 0, got {step_size}")
    chosen = loss or default_loss(model)
    if restarts < 1 or (restarts > 1 and not random_start):
        expected = "an int >= 1" if random_start else "1 where random_start is False, since all would be alike"
        raise ConfigError(f"restarts: expected {expected}, got {restarts}")
    low, high = (images - eps).clamp_(0.0, 1.0), (images + eps).clamp_(0.0, 1.0)

    def ascend(moved: Tensor) -> Tensor:
        for _ in range(steps):
            direction = input_gradient(model, moved, labels, chosen).sign_()
            moved = (moved + size * direction).clamp(low, high)
        return moved

    if not random_start:
        return ascend(images)
    found = ascend((images + eps * _start(images, seed, first)).clamp(low, high))
    for restart in range(1, restarts):
        again = ascend((images + eps * _start(images, seed, first, restart)).clamp(low, high))
        with torch.no_grad(), in_eval_mode(model):
            before, now = (wrong_lead(model(each), labels) for each in (found, again))
        found = torch.where((now > before)[:, None, None, None], again, found)
    return found


def _start(images: Tensor, seed: int, first: int, restart: int = 0) -> Tensor:
    """Numbers in [-1, 1), by the image's number in its set; the first restart has those of a single one."""
    numbers = torch.arange(first, first + len(images), device=images.device)
    stream = key(seed, numbers)
    return 2 * uniform(fold(stream, restart) if restart else stream, images.shape[1:]).to(images.dtype) - 1


def by_pgd(
    source: nn.Module,
    eps: Sequence[float],
    *,
    steps: int = PGD_STEPS,
    restarts: int = 1,
    seed: int = 0,
    loss: AttackLoss | None = None,
) -> Attack:
    """PGD as `measure` takes it, from random starts, with the gradients of `source`."""

    def moved(images: Tensor, labels: Tensor, first: int) -> Iterator[Tensor]:
        for size in eps:
            yield pgd(source, images, labels, size, steps=steps, restarts=restarts, seed=seed, first=first, loss=loss)

    return Attack(tuple(eps), source, moved)
