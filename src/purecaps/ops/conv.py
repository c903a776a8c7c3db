"""The capsule convolution as one grouped conv2d: what cuDNN and oneDNN are fast at.

m is folded into the batch, (C, n) into the input channels, (O, p) into the output channels, and g is the
number of groups. README.md beside this derives it. The capsules stay in the layout that conv2d wrote: the
logical shape is a view of it, so consecutive layers with one m move no data between them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.ops.activation import leaky_squash
from purecaps.ops.geometry import Geometry


def fold_capsules(u: Tensor) -> Tensor:
    """Capsules [B, C, H, W, g, m, n] as images [B*m, g*C*n, H, W]; a view where the strides allow one."""
    B, C, H, W, g, m, n = u.shape
    return u.permute(0, 5, 4, 1, 6, 2, 3).reshape(B * m, g * C * n, H, W)


def fold_kernel(w: Tensor) -> Tensor:
    """A capsule kernel [kh, kw, C, O, g, n, p] as a conv2d kernel [g*O*p, C*n, kh, kw]."""
    kh, kw, C, O, g, n, p = w.shape
    return w.permute(4, 3, 6, 2, 5, 0, 1).reshape(g * O * p, C * n, kh, kw)


def empty_kernel(shape: tuple[int, int, int, int, int, int, int]) -> Tensor:
    """An uninitialised kernel of the logical shape, laid out so that `fold_kernel` is a view of it.

    The view is in channels-last order, and conv2d takes its layout from the kernel as well as from the images: so
    all maps come out as rows of contiguous (O, p), which oneDNN and cuDNN prefer for few channels.
    """
    kh, kw, C, O, g, n, p = shape
    return torch.empty(g, O, p, kh, kw, C, n).permute(3, 4, 5, 1, 0, 6, 2)


def unfold_images(v: Tensor, m: int, g: int, O: int) -> Tensor:
    """Images [B*m, g*O*p, H', W'] as a view of capsules [B, O, H', W', g, m, p]."""
    capsules: Tensor = v.unflatten(1, (g, O, -1)).unflatten(0, (-1, m)).permute(0, 3, 5, 6, 2, 1, 4)
    return capsules


def caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """As `reference.caps_conv2d`, through one grouped conv2d."""
    v = F.conv2d(
        fold_capsules(u),
        fold_kernel(w),
        stride=geometry.stride,
        padding=geometry.padding,
        dilation=geometry.dilation,
        groups=w.shape[4],
    )
    return unfold_images(v, m=u.shape[5], g=w.shape[4], O=w.shape[3])


def caps_block(u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
    """As `reference.caps_block`, with one autograd node for the activation."""
    return leaky_squash(caps_conv2d(u, w, geometry), negative_slope, chunk)
