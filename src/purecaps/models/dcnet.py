"""CapsNets on densely connected convolutions: DCNet and DCNet++ (Phaye et al. 2018, arXiv 1805.04001 and ACCV)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from purecaps.models.class_capsules import ClassCapsules
from purecaps.models.decoder import Decoder
from purecaps.models.guided import Guided
from purecaps.models.images import CIFAR, MNIST, ImageShape
from purecaps.models.registry import register_model
from purecaps.nn import FullyConnectedCapsules, to_capsules
from purecaps.nn.routing import Capsules, capsule_length, squash

PRIMARY_POSE = 8
EPSILON = 1.1e-5


class DenseBlock(nn.Module):
    """Convolutions that each see the block's input and all that those before them made (Huang et al. 2017).

    Each is batch norm, ReLU, 3x3 without bias; a last batch norm goes over everything together.

    Args:
        in_channels: of the input maps.
        layers: how many convolutions.
        growth: channels that each of them adds.

    Shape:
        maps [B, in_channels, H, W] -> [B, in_channels + layers * growth, H, W]
    """

    def __init__(self, in_channels: int, *, layers: int = 8, growth: int = 32) -> None:
        super().__init__()
        self.norms, self.convs = nn.ModuleList(), nn.ModuleList()
        for channels in range(in_channels, in_channels + layers * growth, growth):
            conv = nn.Conv2d(channels, growth, 3, padding=1, bias=False)
            nn.init.kaiming_normal_(conv.weight, nonlinearity="relu")
            self.norms.append(nn.BatchNorm2d(channels, eps=EPSILON))
            self.convs.append(conv)
        self.out_channels = in_channels + layers * growth
        self.last_norm = nn.BatchNorm2d(self.out_channels, eps=EPSILON)

    def forward(self, maps: Tensor) -> Tensor:
        for norm, conv in zip(self.norms, self.convs, strict=True):
            maps = torch.cat((maps, conv(norm(maps).relu())), dim=1)
        normed: Tensor = self.last_norm(maps)
        return normed


def primary_conv(in_channels: int, types: int, kernel: int) -> nn.Conv2d:
    """The convolution to primary capsules of 8, of stride 2 and without padding."""
    conv = nn.Conv2d(in_channels, types * PRIMARY_POSE, kernel, stride=2)
    nn.init.xavier_uniform_(conv.weight)
    nn.init.zeros_(conv.bias)  # type: ignore[arg-type]
    return conv


def class_layer(children: int, num_classes: int, pose_size: int, iterations: int) -> FullyConnectedCapsules:
    """Class capsules by dynamic routing without biases."""
    # Glorot's rule with the fans that the authors' code has, which creates all transforms as one kernel.
    fans = children * num_classes * (PRIMARY_POSE + pose_size)
    return FullyConnectedCapsules(
        children,
        num_classes,
        PRIMARY_POSE,
        pose_size,
        routing="dynamic",
        iterations=iterations,
        std=math.sqrt(2 / fans),
    )


class DCNet(ClassCapsules):
    """A dense block of eight convolutions of 32, 32 types of primary capsules by a 9x9 convolution, capsules of 16.

    Scores are lengths.

    Args:
        in_shape: the images' (channels, height, width).
        num_classes: how many classes to tell apart.
        iterations: of the routing.
        decoder: whether the image is reconstructed in training.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.
    """

    stackable = False
    eval_batch = 250  # nine maps of up to 257 channels at full size are alive at a time

    def __init__(
        self,
        *,
        in_shape: ImageShape = MNIST,
        num_classes: int = 10,
        iterations: int = 3,
        decoder: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_shape, num_classes, smallest=9, mean=mean, std=std)
        self.dense = DenseBlock(in_shape[0])
        self.primary = primary_conv(self.dense.out_channels, 32, 9)
        height, width = ((size - 9) // 2 + 1 for size in in_shape[1:])
        self.classes = class_layer(height * width * 32, num_classes, 16, iterations)
        self.decoder = Decoder(num_classes, 16, in_shape, widths=(512, 512, 1024), dense=True) if decoder else None

    def class_capsules(self, images: Tensor) -> Capsules:
        maps = self.primary(self.dense(self.standardised(images)))
        routed: Capsules = self.classes(squash(to_capsules(maps, PRIMARY_POSE)))
        return routed


class DCNetPP(ClassCapsules):
    """Three levels of dense block and primary capsules, each with class capsules of its own, and some of all together.

    Kernels of the primary capsules are 5, 5 and 3, of stride 2; a level's primary maps, through ReLU and not squashed,
    are what the next one sees. Class capsules are of 16, 12 and 10, those of all primary capsules together of 16.

    In training, the loss is taken of each of the four sets of lengths. Scores are the lengths of a class's four
    capsules joined to one of 54, so below 2. The decoder makes the last colour channel alone: the authors' is the first
    of three that they store from blue to red.

    Args:
        in_shape: the images' (channels, height, width).
        num_classes: how many classes to tell apart.
        iterations: of the routing.
        decoder: whether the image is reconstructed in training.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.
    """

    stackable = False
    eval_batch = 250

    def __init__(
        self,
        *,
        in_shape: ImageShape = CIFAR,
        num_classes: int = 10,
        iterations: int = 3,
        decoder: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_shape, num_classes, smallest=21, mean=mean, std=std)
        types = 12
        self.dense, self.primary, self.classes = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        (channels, *size), total = in_shape, 0
        for kernel, pose_size in ((5, 16), (5, 12), (3, 10)):
            block = DenseBlock(channels)
            conv = primary_conv(block.out_channels, types, kernel)
            size = [(length - kernel) // 2 + 1 for length in size]
            children = size[0] * size[1] * types
            channels, total = types * PRIMARY_POSE, total + children
            self.dense.append(block)
            self.primary.append(conv)
            self.classes.append(class_layer(children, num_classes, pose_size, iterations))
        self.merged = class_layer(total, num_classes, 16, iterations)
        joined = 16 + 12 + 10 + 16
        out_shape = (1, *in_shape[1:])
        self.decoder = Decoder(num_classes, joined, out_shape, widths=(600, 600, 1200), dense=True) if decoder else None

    def levels(self, images: Tensor) -> list[Capsules]:
        """Class capsules of all primary capsules together, then of levels 1, 2 and 3."""
        maps = self.standardised(images)
        children, routed = [], []
        for dense, primary, classes in zip(self.dense, self.primary, self.classes, strict=True):
            convolved = primary(dense(maps))
            poses = squash(to_capsules(convolved, PRIMARY_POSE)).flatten(1, 3)
            children.append(poses)
            routed.append(classes(poses))
            maps = convolved.relu()
        return [self.merged(torch.cat(children, dim=1)), *routed]

    def class_capsules(self, images: Tensor) -> Capsules:
        return _joined(self.levels(images))

    def target(self, images: Tensor) -> Tensor:
        return images[:, -1:]

    def guided(self, images: Tensor, labels: Tensor) -> Guided:
        levels = self.levels(images)
        penalty = self.reconstruction_penalty(_joined(levels).poses, labels, images)
        return Guided(tuple(level.activations for level in levels), penalty)


def _joined(levels: list[Capsules]) -> Capsules:
    """One capsule a class of all levels' numbers."""
    merged, *separate = levels
    poses = torch.cat([*(level.poses for level in separate), merged.poses], dim=-1)
    return Capsules(poses, capsule_length(poses))


@register_model(in_shape=MNIST, recipe="dcnet")
def dcnet(**options: Any) -> DCNet:
    """DCNet: a CapsNet on a dense block of eight convolutions, with its decoder, 11.89M parameters.

    Published: 11.8M parameters; 0.25 % on MNIST, 18.37 % on CIFAR-10. Here: 11,886,370 for MNIST, of which the decoder
    is 2,198,288; for CIFAR-10, in_shape=(3, 32, 32), 11,536,438 without the decoder. From the authors' code
    (ssrp/Multi-level-DCNet, dcnet.py), which has MNIST only: for CIFAR-10 the same network is taken. Running statistics
    of batch norm follow faster than Keras's, so that short runs can be evaluated.
    """
    return DCNet(**options)


@register_model(in_shape=CIFAR, recipe="dcnetpp")
def dcnetpp(**options: Any) -> DCNetPP:
    """DCNet++: three levels of dense blocks and primary capsules, four sets of class capsules, 13.15M parameters.

    Published: 13.4M parameters; 10.29 % on CIFAR-10, 0.29 % on MNIST. Here: 13,153,846 for CIFAR-10, of which the
    decoder is 3,356,224. From the authors' code (ssrp/Multi-level-DCNet, 3leveldcnet.py), which has CIFAR-10 only and
    counts the same; for MNIST, in_shape=(1, 28, 28), the same network is taken. The decoder's target are pixels in
    [0, 1], where the authors' code has standardised ones, which a sigmoid does not reach.
    """
    return DCNetPP(**options)
