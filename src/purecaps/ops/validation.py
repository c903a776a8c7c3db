"""Every check of a shape, dtype, device or option, and the message it gives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from purecaps.errors import ConfigError, unknown_name
from purecaps.ops.autocast import autocast_dtype
from purecaps.ops.geometry import SQUASH_GRADIENTS, Geometry, IntOrPair, Pair

CAPSULES = "[B, C, H, W, g, m, n]"
KERNEL = "[kh, kw, C, O, g, n, p]"


def shape_text(shape: tuple[int, ...] | torch.Size) -> str:
    return "[" + ", ".join(str(size) for size in shape) + "]"


def as_pair(value: IntOrPair, name: str, *, least: int) -> Pair:
    """An int or a pair of ints as a pair, each at least `least`."""
    pair = (value, value) if not isinstance(value, tuple | list) else tuple(value)
    whole = all(isinstance(part, int) and not isinstance(part, bool) and part >= least for part in pair)
    if len(pair) != 2 or not whole:
        raise ConfigError(f"{name}: expected an int >= {least} or a pair of them, got {value!r}")
    return (pair[0], pair[1])


def as_geometry(stride: IntOrPair, padding: IntOrPair, dilation: IntOrPair) -> Geometry:
    return Geometry(
        as_pair(stride, "stride", least=1),
        as_pair(padding, "padding", least=0),
        as_pair(dilation, "dilation", least=1),
    )


def check_floating(tensor: Tensor, name: str) -> None:
    if not tensor.is_floating_point():
        raise ConfigError(f"{name}: expected a floating-point tensor, got {tensor.dtype}")


def check_caps_conv2d(u: Tensor, w: Tensor, geometry: Geometry) -> None:
    """Refuses capsules `u` and a kernel `w` that do not fit each other.

    Args:
        u: input capsules [B, C, H, W, g, m, n].
        w: capsule kernel [kh, kw, C, O, g, n, p].
        geometry: stride, padding and dilation.
    """
    for tensor, name, layout in ((u, "u", CAPSULES), (w, "w", KERNEL)):
        if tensor.dim() != 7:
            raise ConfigError(f"{name}: expected 7 dimensions {layout}, got {tensor.dim()}: {shape_text(tensor.shape)}")
        check_floating(tensor, name)
        for axis, size in zip(layout[1:-1].split(", "), tensor.shape, strict=True):
            if axis != "B" and size < 1:
                raise ConfigError(
                    f"{name}: expected {axis} >= 1, got {axis} = {size} in {name} {shape_text(tensor.shape)}"
                )
    if u.device != w.device:
        raise ConfigError(f"w: expected to be on {u.device}, where u is, got {w.device}")
    # Under autocast the two are cast to one dtype later, so a difference here is what autocast is for.
    if u.dtype != w.dtype and autocast_dtype(u.device.type) is None:
        raise ConfigError(f"w: expected dtype {u.dtype}, as u has, got {w.dtype}")
    fits = (("C", u.shape[1], w.shape[2]), ("g", u.shape[4], w.shape[4]), ("n", u.shape[6], w.shape[5]))
    for axis, of_u, of_w in fits:
        if of_u != of_w:
            raise ConfigError(
                f"w: expected {axis} = {of_u}, as in u {shape_text(u.shape)}, "
                f"got {axis} = {of_w} in w {shape_text(w.shape)}"
            )
    kernel = (w.shape[0], w.shape[1])
    out = geometry.out_size((u.shape[2], u.shape[3]), kernel)
    if out[0] < 1 or out[1] < 1:
        least = geometry.smallest_input((1, 1), kernel)
        raise ConfigError(
            f"u: expected a map of at least {least[0]}x{least[1]} for a {kernel[0]}x{kernel[1]} kernel with "
            f"padding {geometry.padding} and dilation {geometry.dilation}, got {u.shape[2]}x{u.shape[3]}"
        )


def check_refold(v: Tensor, shape: tuple[int, int, int]) -> None:
    if v.dim() < 3:
        raise ConfigError(f"v: expected at least the 3 capsule dimensions g, m, p, got {shape_text(v.shape)}")
    if len(shape) != 3 or min(shape) < 1:
        raise ConfigError(f"shape: expected three sizes (g, m, n) of at least 1, got {tuple(shape)!r}")
    have, want = v.shape[-3:].numel(), shape[0] * shape[1] * shape[2]
    if have != want:
        raise ConfigError(
            f"shape: expected {have} numbers, as capsules of {times(v.shape[-3:])} hold, got {times(shape)} = {want}"
        )


def rows_to_fill(v: Tensor, g: int, n: int) -> int:
    """The m for which capsules of any (g, m, p) refold into (g, m, n); an error where none does."""
    have = v.shape[-3:].numel()
    if have % (g * n):
        raise ConfigError(
            f"u: expected capsules of a multiple of g*n = {g}*{n} = {g * n} numbers, so that m divides out, "
            f"got {times(v.shape[-3:])} = {have}"
        )
    return have // (g * n)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_chunk(chunk: int, numbers: int) -> None:
    if not is_count(chunk) or numbers % chunk:
        raise ConfigError(f"squash_chunk: expected a divisor of the capsule's {numbers} numbers, got {chunk!r}")


def check_slope(negative_slope: float) -> None:
    if not 0 < negative_slope < math.inf:
        raise ConfigError(f"negative_slope: expected a finite number above 0, got {negative_slope!r}")


def check_gradient(squash_gradient: str) -> None:
    if squash_gradient not in SQUASH_GRADIENTS:
        raise unknown_name("squash_gradient", squash_gradient, SQUASH_GRADIENTS)


def times(sizes: tuple[int, ...] | torch.Size) -> str:
    return "x".join(str(size) for size in sizes)
