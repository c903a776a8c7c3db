"""From a trained network in float to one in 8-bit integers, without training."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models.pcapsnet import PCapsNet
from purecaps.models.sizes import layer_sizes
from purecaps.models.store import ModelInfo
from purecaps.quant import arithmetic
from purecaps.quant.calibrate import Ranges, observe, require_quantisable
from purecaps.quant.layer import Pixels, QuantisedLayer, Scaling
from purecaps.quant.network import QuantisedPCapsNet

# A capsule twice as long as the longest of the calibration images still has a score of its own.
_MARGIN = 2.0
_MOST_FRACTION = 14
# Four steps of the fixed point that numbers come from: a finer output would show no more.
_LEAST_RANGE = 4 / (1 << arithmetic.FRACTION)


def quantise(trained: TrainedModel, images: Tensor) -> QuantisedPCapsNet:
    """A P-CapsNet with 8-bit weights and activations; `quant.arithmetic` is what it computes.

    Each column of a kernel has a scale of its own, and each layer's output a scale and a zero point.

    Args:
        trained: the network in float; it is not changed.
        images: raw uint8 training images [N, C, H, W] to find the range of each layer's output on.
    """
    model, info = require_quantisable(trained), trained.info
    ranges = observe(trained, images)
    pixels, scale = _pixel_map(model, info)
    fraction = _score_fraction(model, ranges)
    layers: list[QuantisedLayer] = []
    zero = pixels.zero
    blocks = model.capsule_blocks()
    for index, (block, sizes) in enumerate(zip(blocks, layer_sizes(model), strict=True)):
        last = index == len(blocks) - 1
        weight, scales = quantise_kernel(block.conv.kernel().detach().double().cpu())
        bits = fraction if last else arithmetic.FRACTION
        multiplier, shift = _multipliers(scales[0, 0, 0, :, :, 0, :] * scale * 2.0**bits, f"layer {index}")
        scaling = Scaling(round(block.negative_slope * (1 << arithmetic.SLOPE_BITS)), shift)
        if not last:
            step, out_zero = output_scale(*ranges.outputs[index])
            gain, exponent = arithmetic.as_multiplier(1 / step)
            down = arithmetic.FRACTION + arithmetic.FACTOR_BITS - arithmetic.GAIN_BITS + exponent
            scaling = Scaling(scaling.slope, shift, gain, down, out_zero)
            scale = step
        layers.append(QuantisedLayer(sizes, scaling, weight.to(torch.int8), multiplier, zero))
        zero = scaling.zero
    # What the network in float reached is not what this one does.
    record = {name: value for name, value in info.record.items() if not name.startswith("test_")}
    return QuantisedPCapsNet(layers, pixels, fraction, model.head.pool, replace(info, record=record)).eval()


def quantise_kernel(w: Tensor) -> tuple[Tensor, Tensor]:
    """A kernel [kh, kw, C, O, g, n, p] as integers from -127 to 127, and each column's scale [1, 1, 1, O, g, 1, p]."""
    scale = w.detach().abs().amax(dim=(0, 1, 2, 5), keepdim=True) / 127
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    return (w / safe).round().clamp(-127, 127), scale


def output_scale(low: float, high: float) -> tuple[float, int]:
    """Step and zero point of 8-bit numbers from `low` (at most 0) to `high` (at least 0)."""
    step = max(high - low, _LEAST_RANGE) / 255
    return step, min(255, round(-low / step))


def _pixel_map(model: PCapsNet, info: ModelInfo) -> tuple[Pixels, float]:
    """The map from raw pixels to 8-bit input, and the input's step."""
    channels = info.in_shape[0]
    if model.mean is None and model.std is None:
        return Pixels((1 << arithmetic.PIXEL_BITS,) * channels, (0,) * channels, 0), info.pixel_scale
    mean = [0.0] * channels if model.mean is None else model.mean.flatten().tolist()
    std = [1.0] * channels if model.std is None else model.std.flatten().tolist()
    low = min(0.0, *(-m / s for m, s in zip(mean, std, strict=True)))
    high = max(0.0, *((255 * info.pixel_scale - m) / s for m, s in zip(mean, std, strict=True)))
    step, zero = output_scale(low, high)
    one = 1 << arithmetic.PIXEL_BITS
    factors = tuple(round(one * info.pixel_scale / (s * step)) for s in std)
    summands = tuple(round(one * (zero - m / (s * step) + 0.5)) for m, s in zip(mean, std, strict=True))
    return Pixels(factors, tuple(max(0, summand) for summand in summands), zero), step


def _score_fraction(model: PCapsNet, ranges: Ranges) -> int:
    """Bits after the point of the last layer's numbers: as many as leave room for squared lengths in 31 bits."""
    height, width = layer_sizes(model)[-1].out_size
    if model.head.pool == "mean" and height * width > 1:
        return arithmetic.FRACTION  # the table of lengths is made for it
    longest = max(ranges.longest, 1e-6) * _MARGIN
    bits = math.floor(math.log2(math.sqrt(arithmetic.SCORE_LIMIT) / longest))
    return max(0, min(_MOST_FRACTION, bits))


def _multipliers(values: Tensor, where: str) -> tuple[Tensor, int]:
    """Positive numbers [O, g, p] as int16 M with one shift: M / 2^shift."""
    largest = float(values.max())
    if largest == 0:
        return torch.zeros_like(values, dtype=torch.int16), 1
    _, shift = arithmetic.as_multiplier(largest)
    if shift < 1 or shift > 62:
        raise ConfigError(
            f"model: expected weights of a usual size, got a scale of {largest:.3g} in {where}; use the network in "
            "float instead"
        )
    return (values * 2.0**shift).round().to(torch.int16), shift
