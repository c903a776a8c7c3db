"""The image again from the capsule of one class: the reconstruction that regularises capsule networks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.ops.reference import norm_dtype
from purecaps.ops.validation import shape_text

SABOUR = (512, 1024)  # Sabour et al. (2017), section 4.1; the factor is theirs too, of the paper
SABOUR_FACTOR = 0.0005


class Reconstruction(NamedTuple):
    """What `Decoder.penalised` gives.

    Args:
        images: the images again, [B, C, H, W] in (0, 1).
        penalty: the weighted squared error, a scalar [].
    """

    images: Tensor
    penalty: Tensor


class Decoder(nn.Module):
    """Fully connected layers with ReLU, then a sigmoid, from class capsules to pixels.

    All capsules but one are masked with zeros before: in training all but the true class's, else all but the longest.

    Args:
        num_classes: K, how many capsules there are.
        capsule_size: D, how many numbers a capsule has.
        out_shape: (channels, height, width) of what is reconstructed.
        widths: of the hidden layers.
        factor: weight of the penalty: factor times the squared error summed over an image's numbers, averaged over the
            batch. Code that weights the mean over an image's numbers has factor times C * H * W in its place: 0.392
            for MNIST is the 0.0005 here.
        dense: whether the second hidden layer's input goes on beside its output, as in DCNet's decoder.

    Shape:
        capsules [B, K, D] -> images [B, C, H, W]
    """

    def __init__(
        self,
        num_classes: int,
        capsule_size: int,
        out_shape: tuple[int, int, int],
        *,
        widths: Sequence[int] = SABOUR,
        factor: float = SABOUR_FACTOR,
        dense: bool = False,
    ) -> None:
        super().__init__()
        if not widths or min(widths) < 1:
            raise ConfigError(f"widths: expected one or more ints >= 1, got {list(widths)}")
        if dense and len(widths) < 2:
            raise ConfigError(f"widths: expected two or more where the decoder is dense, got {list(widths)}")
        if factor < 0:
            raise ConfigError(f"factor: expected a number >= 0, got {factor}")
        self.num_classes, self.capsule_size, self.out_shape = num_classes, capsule_size, out_shape
        self.factor, self.dense = factor, dense
        channels, height, width = out_shape
        outputs = (*widths, channels * height * width)
        inputs = [num_classes * capsule_size, *widths]
        if dense:
            inputs[2] += widths[0]
        self.layers = nn.ModuleList(itertools.starmap(nn.Linear, zip(inputs, outputs, strict=True)))

    def forward(self, capsules: Tensor, labels: Tensor | None = None) -> Tensor:
        """The images that the capsules of `labels`, int64 [B], stand for; None takes each image's longest capsule."""
        expected = (self.num_classes, self.capsule_size)
        if capsules.dim() != 3 or tuple(capsules.shape[1:]) != expected:
            raise ConfigError(
                f"capsules: expected [B, {self.num_classes}, {self.capsule_size}], got {shape_text(capsules.shape)}"
            )
        if labels is None:
            # The square has the same order, and no infinite slope at zero.
            labels = capsules.square().sum(dim=2).argmax(dim=1)
        chosen = labels[:, None] == torch.arange(self.num_classes, device=labels.device)
        hidden = (capsules * chosen[:, :, None]).flatten(1)
        for position, layer in enumerate(self.layers[:-1]):
            before, hidden = hidden, layer(hidden).relu()
            if self.dense and position == 1:
                hidden = torch.cat((before, hidden), dim=1)
        pixels: Tensor = self.layers[-1](hidden)
        return pixels.sigmoid().view(-1, *self.out_shape)

    def penalised(self, capsules: Tensor, labels: Tensor | None, images: Tensor) -> Reconstruction:
        """The reconstruction and what is to be paid for its distance from `images` [B, C, H, W] in [0, 1]."""
        found: Tensor = self(capsules, labels)
        if images.shape != found.shape:
            raise ConfigError(f"images: expected {shape_text(found.shape)}, got {shape_text(images.shape)}")
        # Above half precision: a sum over pixels loses what it gains there.
        error = (found.to(norm_dtype(found)) - images).square().sum(dim=(1, 2, 3))
        return Reconstruction(found, self.factor * error.mean())

    def extra_repr(self) -> str:
        return f"factor={self.factor:g}, dense={self.dense}"


def count_parameters(network: nn.Module) -> tuple[int, int]:
    """Those that it takes to classify an image, and those of decoders, which serve training alone."""
    whole = sum(parameter.numel() for parameter in network.parameters())
    decoders = [module for module in network.modules() if isinstance(module, Decoder)]
    decoding = sum(parameter.numel() for decoder in decoders for parameter in decoder.parameters())
    return whole - decoding, decoding
