"""A plain convolutional network of a P-CapsNet's size."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from purecaps.models import PCapsNet


class PlainCNN(nn.Sequential):
    """3x3 convolutions with a P-CapsNet's strides and about as many parameters: ReLU, no bias, mean over positions.

    Args:
        parameters: how many to come close to from below.
        channels: of the images.
        steps: stride and padding of each layer.
        num_classes: outputs.
    """

    def __init__(self, parameters: int, channels: int, steps: Sequence[tuple[int, int]], num_classes: int) -> None:
        hidden = len(steps) - 1

        def count(width: int) -> int:
            return 9 * width * (channels + (hidden - 1) * width + num_classes)

        width = 1
        while count(width + 1) <= parameters:
            width += 1
        sizes = [channels, *[width] * hidden, num_classes]
        layers: list[nn.Module] = []
        for position, (stride, padding) in enumerate(steps):
            ins, outs = sizes[position : position + 2]
            layers.append(nn.Conv2d(ins, outs, 3, stride=stride, padding=padding, bias=False))
            if position < hidden:
                layers.append(nn.ReLU())
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def like(network: PCapsNet) -> PlainCNN:
    """The plain network that is set beside a P-CapsNet."""
    geometries = [block.conv.geometry for block in network.capsule_blocks()]
    return PlainCNN(
        sum(parameter.numel() for parameter in network.parameters()),
        network.in_shape[0],
        [(geometry.stride[0], geometry.padding[0]) for geometry in geometries],
        network.num_classes,
    )
