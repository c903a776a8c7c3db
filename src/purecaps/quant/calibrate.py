"""What a network's numbers lie between, found on training images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.data.transforms import parse
from purecaps.data.types import Dataset
from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models.pcapsnet import PCapsNet
from purecaps.ops import caps_conv2d
from purecaps.ops.reference import length
from purecaps.train.prepare import hold_out
from purecaps.train.recipes import get_recipe

CALIBRATION = 1000
_BATCH = 200


@dataclass(frozen=True)
class Ranges:
    """What a network's numbers lie between, on calibration images.

    Args:
        outputs: least and greatest number of each layer's squashed capsules, the last layer left out.
        longest: the longest capsule of the last layer, before squash.
    """

    outputs: tuple[tuple[float, float], ...]
    longest: float


def calibration_images(dataset: Dataset, count: int = CALIBRATION) -> Tensor:
    """Raw training images [N, C, H, W], spread over the set; none of those that the default recipe holds out."""
    if count < 1:
        raise ConfigError(f"count: expected an int >= 1, got {count}")
    kept, _ = hold_out(dataset.train, get_recipe("default", dataset).val_size)
    chosen = torch.linspace(0, len(kept) - 1, min(count, len(kept))).long()
    return kept.images[chosen]


def require_quantisable(trained: TrainedModel) -> PCapsNet:
    """The network itself, or an error that says why it cannot be quantised and what to do instead."""
    model, info = trained.model, trained.info
    if not isinstance(model, PCapsNet):
        raise ConfigError(f"model: expected a P-CapsNet, got {info.name}; export it to ONNX in float instead")
    if info.preprocess == "gcn_zca":
        raise ConfigError(
            "model: expected one that takes images as they are, got one of whitened images, which are not 8-bit; "
            'train it with preprocess "standardise"'
        )
    if not parse(info.augment).crops_only_at_test:
        raise ConfigError(
            f"model: expected one that takes images as they are, got one trained with {', '.join(info.augment)}; "
            'train it with preprocess "standardise"'
        )
    model.require_capsule_blocks()
    for index, block in enumerate(model.capsule_blocks()):
        if block.negative_slope > 1:
            raise ConfigError(
                f"model: expected slopes of leaky ReLU up to 1, got {block.negative_slope} in layer {index}; use the "
                "network in float instead"
            )
    return model


@torch.inference_mode()
def observe(trained: TrainedModel, images: Tensor) -> Ranges:
    """Runs the network in float on raw uint8 images and notes what each layer's numbers lie between."""
    model = require_quantisable(trained)
    if len(images) == 0:
        raise ConfigError("images: expected at least one calibration image, got none")
    lows = [0.0] * (len(model.blocks) - 1)
    highs, longest = list(lows), 0.0
    device = model.capsule_blocks()[0].conv.weight.device
    for part in images.split(_BATCH):
        maps = list(_activations(model, trained.inputs(part.to(device))))
        if not all(bool(y.isfinite().all()) for y in maps):
            raise ConfigError("model: expected finite numbers on the calibration images, got NaN or infinity")
        for index, y in enumerate(maps[:-1]):
            lows[index] = min(lows[index], float(y.min()))
            highs[index] = max(highs[index], float(y.max()))
        longest = max(longest, float(length(maps[-1], (-3, -2, -1)).max()))
    return Ranges(tuple(zip(lows, highs, strict=True)), longest)


def _activations(model: PCapsNet, images: Tensor) -> Iterator[Tensor]:
    """Each layer's squashed capsules, and of the last one those before squash."""
    u = model.as_capsules(images)
    blocks = model.capsule_blocks()
    for block in blocks[:-1]:
        u = block(u)
        yield u
    last = blocks[-1]
    stride, padding, dilation = last.conv.geometry
    v = caps_conv2d(last.conv.fit(u), last.conv.kernel(), stride=stride, padding=padding, dilation=dilation)
    yield F.leaky_relu(v, last.negative_slope)
