"""Adversarial training: the network is shown images of the batch perturbed against it, not the images themselves."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from purecaps.data.random import uniform
from purecaps.train.recipe import Recipe

STREAM = 2  # of a run's seed, beside the loader's two


def harden(images: Tensor, recipe: Recipe, stream: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Images moved up the loss within `recipe.adversary_eps`, by sign steps from a random start (Madry et al. 2018).

    One step from a random start is the fast variant of Wong et al. (2020), arXiv 2001.03994, whose step of 1.25 eps is
    taken here where the usual 2.5 eps / steps would be more.

    Args:
        images: the network's input [(S,) B, C, H, W], pixels times `recipe.pixel_scale`.
        recipe: how far, and in how many steps.
        stream: key of the random start, [] or [S].
        loss: from such images to the loss, [] or [S].
    """
    unit = 255 * recipe.pixel_scale  # what a pixel of 1 is to the network
    eps = recipe.adversary_eps * unit
    size = min(1.25, 2.5 / recipe.adversary_steps) * eps
    low, high = (images - eps).clamp_(0.0, unit), (images + eps).clamp_(0.0, unit)
    moved = images + eps * (2 * uniform(stream, images.shape[-4:]) - 1)
    for _ in range(recipe.adversary_steps):
        at = moved.clamp(low, high).requires_grad_()
        (gradient,) = torch.autograd.grad(loss(at).sum(), at)
        moved = at.detach() + size * gradient.sign_()
    return moved.clamp(low, high)
