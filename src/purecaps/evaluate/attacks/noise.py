"""Random signs: what an attack that knows nothing does. One that is no stronger has not found anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from purecaps.data.random import key, uniform
from purecaps.evaluate.attacks.attack import Attack
from purecaps.evaluate.attacks.gradient import check_images, perturb


def by_noise(source: nn.Module, eps: Sequence[float], *, seed: int = 0) -> Attack:
    """Every pixel up or down by eps at random, as `measure` takes it; no gradient of `source` is asked for.

    An image's signs depend on its number in its set and are the same for all sizes.
    """

    def moved(images: Tensor, labels: Tensor, first: int) -> Iterator[Tensor]:
        check_images(images, labels)
        numbers = torch.arange(first, first + len(images), device=images.device)
        signs = (uniform(key(seed, numbers), images.shape[1:]) - 0.5).sign().to(images.dtype)
        for size in eps:
            yield perturb(images, size * signs)

    return Attack(tuple(eps), source, moved)
