"""Initial weights. Both schemes draw from N(0, 2/count); they differ in what they count."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from purecaps.errors import ConfigError, unknown_name

SCHEMES = ("msra", "caffe")


def fan(weight_shape: tuple[int, ...] | torch.Size, scheme: str) -> int:
    """What a scheme divides by, for a kernel [kh, kw, C, O, g, n, p].

    Args:
        weight_shape: the kernel's seven sizes.
        scheme: "msra" counts the products summed into one output number, kh*kw*C*n (He et al. 2015);
            "caffe" counts what the authors' code does, kh*kw*O*g*n*p: Caffe divides the blob's size by its
            first axis, and theirs is the input capsules.
    """
    kh, kw, C, O, g, n, p = weight_shape
    if scheme == "msra":
        return kh * kw * C * n
    if scheme == "caffe":
        return kh * kw * O * g * n * p
    raise unknown_name("init", scheme, SCHEMES)


def check_correlation(correlation: float) -> None:
    if not 0 <= correlation < 1:
        raise ConfigError(f"init_correlation: expected a number in [0, 1), got {correlation!r}")


def initialise(
    weight: Tensor, scheme: str, generator: torch.Generator | None = None, *, correlation: float = 0.0
) -> None:
    """Fills `weight` [kh, kw, C, O, g, n, p] in place.

    Args:
        weight: the kernel.
        scheme: what its variance is, as for `fan`.
        generator: where random numbers come from.
        correlation: of the capsules at any two of the kh*kw positions of one kernel, number by number, which is what
            the paper's figure of correlation matrices shows of trained networks. Each is sqrt(correlation) times a
            capsule that all positions share plus sqrt(1 - correlation) times one of its own; the variance stays.
    """
    std = math.sqrt(2 / fan(weight.shape, scheme))
    with torch.no_grad():
        # Drawn in logical order on the CPU, so that one seed gives one network on every device and layout.
        drawn = torch.empty(weight.shape, dtype=torch.float32, device="cpu").normal_(0, std, generator=generator)
        if correlation:
            shared = torch.empty_like(drawn[0, 0]).normal_(0, std, generator=generator)
            drawn = math.sqrt(correlation) * shared + math.sqrt(1 - correlation) * drawn
        weight.copy_(drawn)
