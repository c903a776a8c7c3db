"""What `measure` takes: a way to perturb images by given sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.evaluate.attacks.gradient import check_eps


@dataclass(frozen=True)
class Attack:
    """A way to perturb images, for each of some sizes.

    Args:
        eps: the sizes: the most that a pixel changes by.
        source: the network that it was made with, which need not be the one that it is measured on.
        apply: from images [B, C, H, W] in [0, 1], labels [B] and the number of the first image in its set to the
            perturbed images, once for each size.
    """

    eps: tuple[float, ...]
    source: nn.Module
    apply: Callable[[Tensor, Tensor, int], Iterable[Tensor]]

    def __post_init__(self) -> None:
        if not self.eps:
            raise ConfigError("eps: expected at least one size, got none")
        for size in self.eps:
            check_eps(size)
