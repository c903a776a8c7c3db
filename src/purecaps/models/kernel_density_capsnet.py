"""Networks with routing by kernel density estimation: FRMS and FREM (Zhang et al. 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from purecaps.models.images import MNIST, ImageShape
from purecaps.models.matrix_capsnet import POSE, MatrixCapsNet
from purecaps.models.registry import register_model
from purecaps.nn import ConvCapsules, FullyConnectedCapsules, PrimaryCapsules
from purecaps.nn.routing import Capsules
from purecaps.nn.transform import check_sizes

CHANNELS = (64, 64, 64, 128, 128)
STRIDES = (1, 1, 1, 2, 1)
CAPSULES = 32
STD = 0.1  # of initial transforms


class KernelDensityCapsNet(MatrixCapsNet):
    """Five 3x3 convolutions with batch normalisation, then three capsule layers, routed by mean shift or EM-like.

    The first capsule layer is a convolution, the second convolutional capsules, the third the classes. Scores are
    lengths.

    Args:
        in_shape: the images' (channels, height, width), at least 9x9.
        num_classes: how many classes to tell apart.
        routing: "frms" or "frem".
        iterations: of the routing.
        capsules: types in each hidden capsule layer.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.
    """

    def __init__(
        self,
        *,
        in_shape: ImageShape = MNIST,
        num_classes: int = 10,
        routing: str = "frms",
        iterations: int = 2,
        capsules: int = CAPSULES,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_shape, num_classes, smallest=9, mean=mean, std=std)
        check_sizes(capsules=capsules)
        layers: list[nn.Module] = []
        inputs = in_shape[0]
        for outputs, stride in zip(CHANNELS, STRIDES, strict=True):
            conv = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
            layers += [conv, nn.BatchNorm2d(outputs), nn.ReLU()]
            inputs = outputs
        self.stem = nn.Sequential(*layers)
        self.primary = PrimaryCapsules(inputs, capsules, POSE, 3, stride=2, padding=1)
        options: dict[str, Any] = {"routing": routing, "iterations": iterations, "matrix": True}
        self.routed = nn.ModuleList([ConvCapsules(capsules, capsules, POSE, POSE, 3, std=STD, **options)])
        height, width = (math.ceil(size / 4) - 2 for size in in_shape[1:])
        children = height * width * capsules
        self.classes = FullyConnectedCapsules(children, num_classes, POSE, POSE, std=STD, **options)
        self.gains = (_gain(9 * capsules), _gain(children))

    def class_capsules(self, images: Tensor) -> Capsules:
        poses, activations = self.primary(self.stem(self.standardised(images)))
        for layer, gain in zip((*self.routed, self.classes), self.gains, strict=True):
            poses, activations = layer(gain * poses, activations)
        return Capsules(poses, activations)


def _gain(children: int) -> float:
    """What votes are multiplied with: parents are means of votes, and so those of random votes are as long as a child.

    A constant, and not the deviation of the initial transforms, which would be 8 to 17: Adam's steps of 0.001 would
    move weights of that size by a few percent in a whole training.
    """
    return float((children / POSE**0.5) ** 0.5) / STD


@register_model(in_shape=MNIST, recipe="frms")
def frms(**options: Any) -> KernelDensityCapsNet:
    """Matrix capsules routed by mean shift (FRMS), 2 iterations, a reconstruction: 1.16M parameters.

    Zhang, Zhao, Wu and Zhou (2018), "Fast dynamic routing based on weighted kernel density estimation". Published:
    15.6 % on CIFAR-10 with 1.2M parameters, as cited by the P-CapsNets paper. The network for images is not public
    beyond "a hybrid of convolutional layers and capsule layers", so all of it but the routing is ours: five
    convolutions of 64, 64, 64, 128 and 128 channels and 32 capsules a layer, which make 1,219,648 parameters for
    CIFAR-10 and 1,162,176 for MNIST. The routing is what an author later published for text; see
    `purecaps.nn.routing.frms`.
    """
    return KernelDensityCapsNet(**{"routing": "frms", **options})


@register_model(in_shape=MNIST, recipe="frem")
def frem(**options: Any) -> KernelDensityCapsNet:
    """Matrix capsules routed by an EM-like alternation (FREM), 2 iterations, a reconstruction: 1.16M parameters.

    Published: 14.3 % on CIFAR-10 with 1.2M parameters, as cited by the P-CapsNets paper. The network is that of
    `frms`, a reconstruction, and so is the routing, rebuilt from the paper's idea; see `purecaps.nn.routing.frem`.
    """
    return KernelDensityCapsNet(**{"routing": "frem", **options})
