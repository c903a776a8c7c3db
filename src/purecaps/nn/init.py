"""Initial weights. Both schemes draw from N(0, 2/count); they differ in what they count."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from purecaps.errors import unknown_name

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


def initialise(weight: Tensor, scheme: str, generator: torch.Generator | None = None) -> None:
    """Fills `weight` [kh, kw, C, O, g, n, p] in place."""
    std = math.sqrt(2 / fan(weight.shape, scheme))
    with torch.no_grad():
        # Drawn in logical order on the CPU, so that one seed gives one network on every device and layout.
        drawn = torch.empty(weight.shape, dtype=torch.float32).normal_(0, std, generator=generator)
        weight.copy_(drawn)
