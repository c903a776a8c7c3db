"""The capsule convolution as one would first write it: all windows unfolded, then one einsum."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.ops import registry
from purecaps.ops.geometry import Geometry
from purecaps.ops.reference import squash


def caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    (pad_h, pad_w), (kh, kw) = geometry.padding, w.shape[:2]
    padded = F.pad(u, (0, 0, 0, 0, 0, 0, pad_w, pad_w, pad_h, pad_h))
    windows = padded.unfold(2, kh, geometry.stride[0]).unfold(
        3, kw, geometry.stride[1]
    )  # [B, C, H', W', g, m, n, kh, kw]
    return torch.einsum("bcyxgmnij,ijcognp->boyxgmp", windows, w)


def caps_block(u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
    v = F.leaky_relu(caps_conv2d(u, w, geometry), negative_slope)
    if chunk is None:
        return squash(v, (-3, -2, -1))
    return squash(v.flatten(-3).unflatten(-1, (-1, chunk)), (-1,)).reshape(v.shape)


def _refuses(u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None) -> str | None:
    return None if geometry.dilation == (1, 1) else f"dilation {geometry.dilation}, only 1 is covered"


def add_to_registry() -> None:
    """Makes it known as impl="naive": only here, since nobody else should want it."""
    if "naive" not in registry.names():
        registry.register(registry.Implementation("naive", caps_conv2d, caps_block, _refuses, automatic=registry.never))
