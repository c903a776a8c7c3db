"""The fast gradient sign method of Goodfellow et al. (2015), arXiv 1412.6572: one step of full size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from purecaps.evaluate.attacks.attack import Attack
from purecaps.evaluate.attacks.gradient import check_images, input_gradient, perturb
from purecaps.evaluate.attacks.loss import AttackLoss, default_loss


def fgsm(model: nn.Module, images: Tensor, labels: Tensor, eps: float, *, loss: AttackLoss | None = None) -> Tensor:
    """Images moved by eps, pixel by pixel, in the direction in which the loss rises.

    Args:
        model: maps images [B, C, H, W] in [0, 1] to scores [B, K].
        images: float [B, C, H, W] in [0, 1].
        labels: int64 [B], the true classes.
        eps: the most that a pixel changes by.
        loss: what is to rise; None takes `default_loss(model)`.
    """
    (moved,) = by_fgsm(model, [eps], loss=loss).apply(images, labels, 0)
    return moved


def by_fgsm(source: nn.Module, eps: Sequence[float], *, loss: AttackLoss | None = None) -> Attack:
    """FGSM as `measure` takes it; all sizes share one gradient of `source`."""
    chosen = loss or default_loss(source)

    def moved(images: Tensor, labels: Tensor, first: int) -> Iterator[Tensor]:
        check_images(images, labels)
        direction = input_gradient(source, images, labels, chosen).sign_()
        for size in eps:
            yield perturb(images, size * direction)

    return Attack(tuple(eps), source, moved)
