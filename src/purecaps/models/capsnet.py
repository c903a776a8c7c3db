"""CapsNets with dynamic routing (Sabour, Frosst and Hinton 2017, "Dynamic Routing Between Capsules")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from purecaps.models.class_capsules import ClassCapsules
from purecaps.models.decoder import Decoder
from purecaps.models.images import CIFAR_CROP, MNIST, ImageShape
from purecaps.models.registry import register_model
from purecaps.nn import FullyConnectedCapsules, to_capsules
from purecaps.nn.routing import Capsules, squash

CHANNELS = 256
KERNEL = 9
PRIMARY_POSE = 8
CLASS_POSE = 16
BIAS = 0.1  # what the authors' code starts every bias at
FACTOR = 0.01  # of the reconstruction, see `capsnet_dr`


class CapsNet(ClassCapsules):
    """A 9x9 convolution with ReLU, primary capsules of 8 by a 9x9 convolution of stride 2, class capsules of 16.

    As in the authors' code, what a primary capsule gets from its convolution is divided by the number of types before
    the bias is added: they take the convolution for a layer of one routing iteration, which shares each child equally
    among its parents. Initial weights are theirs too. Scores are lengths.

    Args:
        in_shape: the images' (channels, height, width).
        num_classes: how many classes to tell apart.
        iterations: of the routing.
        types: primary capsules at each position.
        padding: zeros on each side before both convolutions.
        leaky: gives children the choice of no class.
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
        iterations: int = 3,
        types: int = 32,
        padding: int = 0,
        leaky: bool = False,
        decoder: bool = True,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        smallest = max(1, 2 * KERNEL - 1 - 4 * padding)
        super().__init__(in_shape, num_classes, smallest=smallest, mean=mean, std=std)
        self.conv = nn.Conv2d(in_shape[0], CHANNELS, KERNEL, padding=padding)
        self.primary = nn.Conv2d(CHANNELS, types * PRIMARY_POSE, KERNEL, stride=2, padding=padding, bias=False)
        self.primary_bias = nn.Parameter(torch.empty(types, PRIMARY_POSE))
        self.parents_of_conv = types + leaky
        first = (size + 2 * padding - KERNEL + 1 for size in in_shape[1:])
        height, width = ((size + 2 * padding - KERNEL) // 2 + 1 for size in first)
        self.classes = FullyConnectedCapsules(
            height * width * types,
            num_classes,
            PRIMARY_POSE,
            CLASS_POSE,
            routing="dynamic",
            iterations=iterations,
            leaky=leaky,
            bias=BIAS,
        )
        self.decoder = Decoder(num_classes, CLASS_POSE, in_shape, factor=FACTOR) if decoder else None
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights as the authors' code does: normal, cut off at two deviations, and all biases 0.1."""
        for name, parameter in self.named_parameters():
            if "bias" in name:
                parameter.fill_(BIAS)
            else:
                std = 0.05 if name == "conv.weight" else 0.1
                nn.init.trunc_normal_(parameter, 0.0, std, -2 * std, 2 * std, generator=generator)

    def class_capsules(self, images: Tensor) -> Capsules:
        maps = self.primary(self.conv(self.standardised(images)).relu())
        shared = to_capsules(maps, PRIMARY_POSE) / self.parents_of_conv
        routed: Capsules = self.classes(squash(shared + self.primary_bias))
        return routed


@register_model(in_shape=MNIST, recipe="capsnet_dr")
def capsnet_dr(**options: Any) -> CapsNet:
    """CapsNet with dynamic routing, 3 iterations, and its decoder: 8.22M parameters.

    Published: 8.2M parameters, 6.8M without the decoder (decoder=False); on MNIST 0.25 % (0.005) with it and 0.35 %
    (0.036) without, three runs each. Here: 8,215,728 and 6,804,384. Kernels and widths are the paper's;
    biases in the routing sum, initial weights, the share of 1/32 before primary capsules are squashed and the weight of
    the reconstruction are from the authors' code (Sarasra/models, research/capsules). That weight is 0.0005 there, as
    in the paper, but beside half of a margin loss that is averaged over classes: a twentieth of the paper's and of the
    one here, so that it is 0.01 here.
    """
    return CapsNet(**options)


@register_model(in_shape=MNIST, recipe="capsnet_dr")
def capsnet_dr1(**options: Any) -> CapsNet:
    """CapsNet with dynamic routing, 1 iteration, and its decoder: every class gets the same share of every capsule.

    Published: on MNIST 0.29 % (0.011), and 0.34 % (0.032) without the decoder. Else as `capsnet_dr`.
    """
    return CapsNet(**{"iterations": 1, **options})


@register_model(in_shape=MNIST, recipe="capsnet_dr", comparison=True)
def capsnet_dr_nodecoder(**options: Any) -> CapsNet:
    """`capsnet_dr` without the decoder: 6.80M parameters, the row "CapsNets, Dynamic (3)" of the paper's Table 1."""
    return CapsNet(**{"decoder": False, **options})


@register_model(in_shape=MNIST, recipe="capsnet_dr", comparison=True)
def capsnet_dr1_nodecoder(**options: Any) -> CapsNet:
    """`capsnet_dr1` without the decoder: 6.80M parameters, the row "CapsNets, Dynamic (1)" of the paper's Table 1."""
    return CapsNet(**{"iterations": 1, "decoder": False, **options})


@register_model(in_shape=CIFAR_CROP, recipe="capsnet_dr")
def capsnet_dr_cifar(**options: Any) -> CapsNet:
    """CapsNet with dynamic routing for 24x24 crops of CIFAR-10: 64 primary types, leaky, no decoder, 22.48M parameters.

    Published: 10.6 % by an ensemble of 7. The paper gives no size; "6.8M" in tables of others is the MNIST network's.
    Padded convolutions are from the authors' command for CIFAR-10 (padding=SAME), not in the paper; padding=0 makes a
    network of 11,990,688 parameters. TensorFlow pads a map of even size by 3 and 4 where it steps by 2, here it is 4
    and 4: maps have the same sizes.
    """
    return CapsNet(**{"types": 64, "padding": 4, "leaky": True, "decoder": False, **options})
