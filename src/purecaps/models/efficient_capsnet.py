"""Efficient-CapsNet: few primary capsules and self-attention routing (Mazzia et al. 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from purecaps.models.class_capsules import ClassCapsules
from purecaps.models.decoder import Decoder
from purecaps.models.images import MNIST, ImageShape
from purecaps.models.registry import register_model
from purecaps.nn import FullyConnectedCapsules, to_capsules
from purecaps.nn.routing import Capsules
from purecaps.ops.reference import squash

LAYERS = ((32, 5, 1), (64, 3, 1), (64, 3, 1), (128, 3, 2))  # channels, kernel, stride
PRIMARY_POSE = 8
CLASS_POSE = 16
EPSILON = 1e-3  # of batch normalisation: Keras's


class EfficientCapsNet(ClassCapsules):
    """Four convolutions, one depthwise convolution over the whole map, class capsules with self-attention routing.

    The depthwise convolution leaves one position of 128 channels: 16 primary capsules of 8. Scores are lengths.

    Args:
        in_shape: the images' (channels, height, width), at least 11x11.
        num_classes: how many classes to tell apart.
        decoder: whether the image is reconstructed in training.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.
    """

    stackable = False

    def __init__(
        self,
        *,
        in_shape: ImageShape = MNIST,
        num_classes: int = 10,
        decoder: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_shape, num_classes, smallest=11, mean=mean, std=std)
        layers: list[nn.Module] = []
        inputs, height, width = in_shape
        for outputs, kernel, stride in LAYERS:
            layers += [nn.Conv2d(inputs, outputs, kernel, stride), nn.ReLU(), nn.BatchNorm2d(outputs, eps=EPSILON)]
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
            inputs = outputs
        self.stem = nn.Sequential(*layers)
        self.primary = nn.Conv2d(inputs, inputs, (height, width), groups=inputs)
        count = inputs // PRIMARY_POSE
        # He's deviation with the fan of the authors' code, which takes all pairs of capsules for one kernel's window.
        deviation = (2 / (num_classes * count * PRIMARY_POSE)) ** 0.5
        self.classes = FullyConnectedCapsules(
            count, num_classes, PRIMARY_POSE, CLASS_POSE, routing="self_attention", std=deviation
        )
        self.decoder = Decoder(num_classes, CLASS_POSE, in_shape) if decoder else None
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                draw = nn.init.xavier_uniform_ if module is self.primary else nn.init.kaiming_normal_
                draw(module.weight)
                nn.init.zeros_(module.bias)

    def class_capsules(self, images: Tensor) -> Capsules:
        maps = self.primary(self.stem(self.standardised(images)))
        routed: Capsules = self.classes(squash(to_capsules(maps, PRIMARY_POSE), (-1,)))
        return routed


@register_model(in_shape=MNIST, recipe="efficient_capsnet")
def efficient_capsnet(**options: Any) -> EfficientCapsNet:
    """Efficient-CapsNet: 161,824 parameters, and 1.41M more in the decoder that training needs.

    Mazzia, Salvetti and Chiaberge (2021), "Efficient-CapsNet: capsule network with self-attention routing".
    Published: 0.26 % on MNIST, mean of single networks, 161K parameters, the decoder not counted. Here: 161,824, and
    1,573,168 with the decoder; decoder=False leaves it out. Layers and their initial weights are those of the
    authors' code (EscVM/Efficient-CapsNet) for 28x28 images; the decoder's initial weights, the momentum of batch
    normalisation and Adam's epsilon are PyTorch's, theirs Keras's. For others the depthwise kernel is as large as the
    map, 11x11 for CIFAR-10, which makes 168,544 parameters; the authors have no network for CIFAR-10.
    """
    return EfficientCapsNet(**options)
