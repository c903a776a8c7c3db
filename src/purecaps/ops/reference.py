"""The specification: the paper's equations, written with einsum. Everything else is held against it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.ops.geometry import Geometry


def caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """Equation 3 of the paper: a sum of small matrix products over input capsules and kernel positions.

    Args:
        u: input capsules [B, C, H, W, g, m, n].
        w: capsule kernel [kh, kw, C, O, g, n, p].
        geometry: stride, padding and dilation.

    Returns:
        Output capsules [B, O, H', W', g, m, p].
    """
    kh, kw = w.shape[:2]
    out_h, out_w = geometry.out_size((u.shape[2], u.shape[3]), (kh, kw))
    (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w) = geometry
    padded = F.pad(u, (0, 0, 0, 0, 0, 0, pad_w, pad_w, pad_h, pad_h))
    total = None
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation_h, j * dilation_w
            seen = padded[
                :,
                :,
                top : top + stride_h * (out_h - 1) + 1 : stride_h,
                left : left + stride_w * (out_w - 1) + 1 : stride_w,
            ]
            term = torch.einsum("bcyxgmn,cognp->boyxgmp", seen, w[i, j])
            total = term if total is None else total + term
    assert total is not None  # a kernel has at least one position; validation saw to it
    return total


def squash_factor(r: Tensor) -> Tensor:
    """(1 - exp(-r)) / r, which is 1 at r = 0, with a finite gradient there."""
    safe = torch.where(r > 0, r, torch.ones_like(r))
    # Three terms of the series: at the switch the next one, r^3/24, is below float64's resolution.
    small = 1 - r / 2 + r * r / 6
    return torch.where(r < 1e-5, small, -torch.expm1(-safe) / safe)


def squash(v: Tensor, dim: tuple[int, ...]) -> Tensor:
    """(1 - exp(-|v|)) v / |v|, the norm taken over `dim`; zero stays zero, with the identity as gradient."""
    return v * squash_factor(length(v, dim)).to(v.dtype)


def length(v: Tensor, dim: tuple[int, ...], *, keepdim: bool = True) -> Tensor:
    """|v| over `dim`, whose first and second derivatives are finite at zero capsules (and taken as zero there).

    Half-precision capsules are measured in float32. In float32 lengths up to 1e19 are right: beyond, squares overflow.
    """
    squares = v.to(norm_dtype(v)).square().sum(dim=dim, keepdim=keepdim)
    zero = squares == 0
    # The root of a stand-in: the root's own derivative at zero is infinite, and infinity times zero is not zero.
    return torch.where(zero, torch.zeros_like(squares), torch.where(zero, torch.ones_like(squares), squares).sqrt())


def norm_dtype(v: Tensor) -> torch.dtype:
    """Norms of half-precision capsules are taken in float32: the squares of fp16 overflow from 256 on."""
    return torch.float32 if v.dtype in (torch.float16, torch.bfloat16) else v.dtype


def caps_block(u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
    """A whole layer: capsule convolution, leaky ReLU, squash over the capsule or over chunks of it."""
    v = F.leaky_relu(caps_conv2d(u, w, geometry), negative_slope)
    if chunk is None:
        return squash(v, (-3, -2, -1))
    chunks = v.flatten(-3).unflatten(-1, (-1, chunk))
    return squash(chunks, (-1,)).reshape(v.shape)
