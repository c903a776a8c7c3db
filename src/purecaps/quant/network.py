"""A P-CapsNet whose weights and activations are 8-bit integers, computed exactly."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from purecaps.data.transforms import parse
from purecaps.errors import CheckpointError, ConfigError
from purecaps.models.registry import get_entry
from purecaps.models.sizes import LayerSizes
from purecaps.models.store import ModelInfo, info_from, load_weights, pretrained_path
from purecaps.ops.validation import shape_text
from purecaps.quant import arithmetic
from purecaps.quant.layer import Pixels, QuantisedLayer, Scaling
from purecaps.tensorfile import read_tensors, write_tensors

KIND = "quantised"


class QuantisedPCapsNet(nn.Module):
    """A P-CapsNet in integers; `quantise` makes one.

    A class's score is the squared length of its last capsule before squash, which orders classes as lengths do. Where
    the last map is larger than 1x1 and positions are averaged, it is the sum of lengths after squash.

    Args:
        layers: first to last.
        pixels: how raw pixels become the first layer's input.
        fraction: bits after the point of the last layer's numbers: a score of 1x1 maps is |v|^2 times 4^fraction.
        pool: "mean" or "max", over positions.
        info: what it was trained on and how its input is made.

    Shape:
        images [B, C, H, W], uint8 or float in [0, 1] -> scores [B, num_classes], int32
    """

    table: Tensor
    lengths: Tensor | None

    def __init__(
        self, layers: Sequence[QuantisedLayer], pixels: Pixels, fraction: int, pool: str, info: ModelInfo
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.pixels, self.fraction, self.pool, self.info = pixels, fraction, pool, info
        self.register_buffer("table", arithmetic.squash_table())
        self.register_buffer("lengths", arithmetic.length_table() if self.adds_lengths else None)

    @property
    def adds_lengths(self) -> bool:
        """Whether scores are sums of lengths over positions, not squared lengths."""
        height, width = self.capsule_layers()[-1].sizes.out_size
        return self.pool == "mean" and height * width > 1

    def capsule_layers(self) -> list[QuantisedLayer]:
        return [layer for layer in self.layers if isinstance(layer, QuantisedLayer)]

    @property
    def constant_bytes(self) -> int:
        """Weights, multipliers and tables."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.buffers())

    def multiply_adds(self) -> int:
        return sum(layer.sizes.multiply_adds for layer in self.capsule_layers())

    def inputs(self, images: Tensor) -> Tensor:
        """Raw uint8 images [N, C, H, W] as the network takes them: cropped, where it was trained on crops."""
        if images.dtype != torch.uint8 or images.shape[1:] != self.info.image_shape:
            raise ConfigError(
                f"images: expected uint8 [N, {', '.join(map(str, self.info.image_shape))}], as the network was "
                f"trained on, got {images.dtype} {list(images.shape)}"
            )
        return parse(self.info.augment).at_test(images.float()).to(torch.uint8)

    def scores(self, images: Tensor) -> Tensor:
        """Class scores [N, K] of raw uint8 images [N, C, H, W]."""
        scores: Tensor = self(self.inputs(images))
        return scores

    @torch.inference_mode()
    def forward(self, images: Tensor) -> Tensor:
        u = self.pixels(self._as_bytes(images)).permute(0, 2, 3, 1)[:, None, :, :, None, None, :]
        layers = self.capsule_layers()
        table = self.table.long()
        for layer in layers[:-1]:
            u = layer(u, table)
        squares = layers[-1].fixed_point(u).square().sum(dim=(-3, -2, -1))  # [B, O, H', W']
        if self.lengths is not None:
            scores = arithmetic.squashed_length(squares, self.lengths.long()).sum(dim=(2, 3))
        else:
            scores = squares.amax(dim=(2, 3))
        return scores.clamp(max=arithmetic.SCORE_LIMIT).to(torch.int32)

    def length_of(self, scores: Tensor) -> Tensor:
        """Scores as the lengths that the network in float would give, about: float64 [B, num_classes]."""
        if self.adds_lengths:
            height, width = self.capsule_layers()[-1].sizes.out_size
            return scores.double() / (height * width * ((1 << arithmetic.FACTOR_BITS) - 1))
        return -torch.expm1(-scores.double().sqrt() / (1 << self.fraction))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes everything to one safetensors file, atomically."""
        layers = self.capsule_layers()
        meta = {
            "info": asdict(self.info),
            "layers": [{"sizes": asdict(layer.sizes), "scaling": asdict(layer.scaling)} for layer in layers],
            "pixels": asdict(self.pixels),
            "fraction": self.fraction,
            "pool": self.pool,
        }
        write_tensors(path, KIND, self.state_dict(), meta)

    @classmethod
    def from_package(cls, name: str) -> QuantisedPCapsNet:
        """The quantised form of a model's packaged weights."""
        path = pretrained_path(f"{name}-int8")
        if path is None:
            get_entry(name)
            raise ConfigError(f"model: there are no packaged 8-bit weights of {name!r}; quantise it first")
        return cls.load(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> QuantisedPCapsNet:
        """Reads what `save` wrote."""
        tensors, meta = read_tensors(path, KIND)
        try:
            pixels = Pixels(**{name: _tuples(value) for name, value in meta["pixels"].items()})
            layers, zero = [], pixels.zero
            for index, stored in enumerate(meta["layers"]):
                sizes = LayerSizes(**{name: _tuples(value) for name, value in stored["sizes"].items()})
                scaling = Scaling(**stored["scaling"])
                weight, multiplier = (tensors[f"layers.{index}.{name}"] for name in ("weight", "multiplier"))
                layers.append(QuantisedLayer(sizes, scaling, weight, multiplier, zero))
                zero = scaling.zero
            network = cls(layers, pixels, meta["fraction"], meta["pool"], info_from(meta["info"]))
        except (KeyError, TypeError, ConfigError) as error:
            raise CheckpointError(f"{path}: expected a quantised network, got {error}") from error
        # The file's own tables, though they are made alike: what was written down is what is computed.
        load_weights(network, tensors, what=str(path))
        return network.eval()

    def _as_bytes(self, images: Tensor) -> Tensor:
        shape = self.info.in_shape
        if images.dim() != 4 or images.shape[1:] != shape:
            raise ConfigError(f"images: expected [B, {', '.join(map(str, shape))}], got {shape_text(images.shape)}")
        if images.dtype == torch.uint8:
            return images
        if not images.is_floating_point():
            raise ConfigError(f"images: expected uint8, or float in [0, 1], got {images.dtype}")
        return (images.float() * (1 / self.info.pixel_scale)).round().clamp(0, 255).to(torch.uint8)

    def extra_repr(self) -> str:
        return f"{self.info.name}, {self.constant_bytes:,} bytes"


def _tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
