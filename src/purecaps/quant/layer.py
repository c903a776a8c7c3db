"""One capsule layer in 8-bit integers, and the pixels before the first one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.models.sizes import LayerSizes
from purecaps.ops import refold
from purecaps.ops.conv import caps_conv2d
from purecaps.ops.geometry import Geometry
from purecaps.quant import arithmetic


@dataclass(frozen=True)
class Pixels:
    """How raw pixels become the first layer's 8-bit input: q = (pixel * factor + summand) / 2^16, rounded down.

    Args:
        factors: of each channel; 2^16 leaves pixels as they are.
        summands: of each channel, the half that rounds included.
        zero: the input that stands for 0.
    """

    factors: tuple[int, ...]
    summands: tuple[int, ...]
    zero: int

    def __call__(self, images: Tensor) -> Tensor:
        """uint8 [B, C, H, W] as int64 steps from zero."""
        factors, summands = (
            torch.tensor(values, device=images.device).view(-1, 1, 1) for values in (self.factors, self.summands)
        )
        q = (images.to(torch.int64) * factors + summands) >> arithmetic.PIXEL_BITS
        return q.clamp(max=255) - self.zero


@dataclass(frozen=True)
class Scaling:
    """The numbers of a layer that bring its accumulators to its output; see `quant.arithmetic`.

    Args:
        slope: of leaky ReLU, times 2^15.
        shift: of accumulator times multiplier, down to fixed point.
        gain: 1/scale of the output; 0 in the last layer, which is not squashed.
        gain_shift: of number times factor times gain, down to the output.
        zero: the output that stands for 0.
    """

    slope: int
    shift: int
    gain: int = 0
    gain_shift: int = 0
    zero: int = 0


class QuantisedLayer(nn.Module):
    """One capsule layer in integers.

    Args:
        sizes: of its maps and kernel.
        scaling: from its accumulators to its output.
        weight: int8 [kh, kw, C, O, g, n, p].
        multiplier: int16 [O, g, p], above or equal to 0: a column's scale as a number of 15 bits.
        in_zero: the input that stands for 0.
    """

    weight: Tensor
    multiplier: Tensor

    def __init__(self, sizes: LayerSizes, scaling: Scaling, weight: Tensor, multiplier: Tensor, in_zero: int) -> None:
        super().__init__()
        self.sizes, self.scaling, self.in_zero = sizes, scaling, in_zero
        self.register_buffer("weight", weight)
        self.register_buffer("multiplier", multiplier)
        self._check()

    @property
    def accumulator_bound(self) -> int:
        """No accumulator of any image is larger, for these weights."""
        columns = self.weight.long().abs().sum(dim=(0, 1, 2, 5))
        return int(columns.max()) * max(self.in_zero, 255 - self.in_zero)

    def fixed_point(self, u: Tensor) -> Tensor:
        """Input capsules [B, C, H, W, ...], in steps from zero, to fixed-point output [B, O, H', W', g, m, p]."""
        sizes = self.sizes
        # Integers of up to 53 bits are exact in float64, and no library has an algorithm for it that rounds otherwise.
        v = caps_conv2d(
            refold(u, (sizes.g, sizes.m, sizes.n)).double(),
            self.weight.double(),
            Geometry(sizes.stride, sizes.padding),
        )
        multiplier = self.multiplier.long()[:, None, None, :, None, :]
        return arithmetic.rescale(v.long(), multiplier, self.scaling.slope, self.scaling.shift)

    def forward(self, u: Tensor, table: Tensor) -> Tensor:
        """Input capsules to squashed output capsules [B, O, H', W', g, m, p], all as steps from zero, int64."""
        t = self.fixed_point(u)
        runs = t.flatten(-3).unflatten(-1, (-1, self.sizes.chunk))
        squares = runs.square().sum(dim=-1, keepdim=True)
        scaling = self.scaling
        y = arithmetic.squash(runs, squares, table, scaling.gain, scaling.gain_shift, scaling.zero)
        return y.reshape(t.shape)

    def _check(self) -> None:
        if self.weight.dtype != torch.int8 or self.weight.shape != self.sizes.kernel_shape:
            raise ConfigError(
                f"weight: expected int8 {list(self.sizes.kernel_shape)}, got {self.weight.dtype} "
                f"{list(self.weight.shape)}"
            )
        columns = (self.sizes.O, self.sizes.g, self.sizes.p)
        multiplier = self.multiplier
        if multiplier.dtype != torch.int16 or multiplier.shape != columns or int(multiplier.min()) < 0:
            raise ConfigError(
                f"multiplier: expected int16 {list(columns)} from 0 up, got {multiplier.dtype} "
                f"{list(multiplier.shape)} from {int(multiplier.min())} up"
            )
        # 2^31 steps times a multiplier of 15 bits and the half that rounds stay well inside 64 bits.
        for name, value, low, high in (
            ("accumulator bound", self.accumulator_bound, 0, (1 << 31) - 1),
            ("numbers squashed together", self.sizes.chunk, 1, arithmetic.MOST_NUMBERS),
            ("slope", self.scaling.slope, 0, 1 << arithmetic.SLOPE_BITS),
            ("shift", self.scaling.shift, 1, 62),
            ("gain", self.scaling.gain, 0, (1 << 15) - 1),
            ("gain_shift", self.scaling.gain_shift, 1 if self.scaling.gain else 0, 62 - arithmetic.MOST_HALVINGS),
            ("zero", self.scaling.zero, 0, 255),
            ("in_zero", self.in_zero, 0, 255),
        ):
            if not low <= value <= high:
                raise ConfigError(
                    f"layer {self.sizes.C} -> {self.sizes.O}: expected {name} from {low} to {high}, got {value}; use "
                    "the network in float instead"
                )
