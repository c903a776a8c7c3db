"""A plain residual network, for capsule networks to learn from. Its scores are logits, not lengths."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from purecaps.models.cnn import ConvNet
from purecaps.models.images import CIFAR, ImageShape, check_images
from purecaps.models.registry import register_model

WIDTHS = (32, 64, 128)
BLOCKS = 2  # a stage


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to their input (He et al. 2016, arXiv 1512.03385).

    Where the block changes the size of its input, a 1x1 convolution with batch norm fits the input to it.

    Args:
        inputs: channels of its input.
        outputs: channels of its output.
        stride: of the first convolution.

    Shape:
        [B, inputs, H, W] -> [B, outputs, H', W']
    """

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first, self.second = _normalised(inputs, outputs, 3, stride), _normalised(outputs, outputs, 3)
        fits = (inputs, stride) == (outputs, 1)
        self.shortcut = nn.Identity() if fits else _normalised(inputs, outputs, 1, stride)

    def forward(self, maps: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.first(maps))) + self.shortcut(maps))


@register_model(in_shape=CIFAR, recipe="cnn")
def resnet(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """A residual network for small images: 696,618 parameters, a teacher for distillation.

    The CIFAR-10 form of He et al. (2016), wider and less deep than theirs: three stages of 32, 64 and 128 channels, of
    two blocks each; their twenty layers with 16, 32 and 64 channels have 0.27M parameters.
    """
    check_images(in_shape, num_classes, smallest=16)
    layers: list[nn.Module] = [_normalised(in_shape[0], WIDTHS[0], 3), nn.ReLU()]
    before = WIDTHS[0]
    for width in WIDTHS:
        for position in range(BLOCKS):
            layers.append(ResidualBlock(before, width, stride=2 if width > WIDTHS[0] and position == 0 else 1))
            before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, num_classes)]
    return ConvNet(layers, in_shape=in_shape, num_classes=num_classes, **options)


def _normalised(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size of maps but for the stride, and batch norm; that makes a bias needless."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))
