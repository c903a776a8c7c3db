"""Networks of matrix capsules: EM routing (Hinton et al. 2018) and variational Bayes routing (Ribeiro et al. 2020)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from purecaps.models.class_capsules import ClassCapsules
from purecaps.models.images import CIFAR, CIFAR_CROP, MNIST, ImageShape
from purecaps.models.registry import register_model
from purecaps.nn import ConvCapsules, FullyConnectedCapsules, PrimaryCapsules
from purecaps.nn.routing import Capsules

POSE = 16  # a 4 x 4 matrix
# The smallest image whose maps after a 5x5 kernel of stride 2 and 3x3 windows of strides 2 and 1 are not empty.
SMALLEST = 17
BETA_U = 2.0  # what EM's convolutional capsules start from


class MatrixCapsNet(ClassCapsules):
    """Base of networks of 4 x 4 capsules: plain layers, primary capsules, convolutional capsules, class capsules.

    Subclasses set the four parts. Scores are the activations of the class capsules.
    """

    pose_rows = 4
    stackable = False
    eval_batch = 100  # where votes are not routed in parts, as in onnxruntime, an image takes up to 100 MB

    stem: nn.Module
    primary: PrimaryCapsules
    routed: nn.ModuleList
    classes: FullyConnectedCapsules

    def class_capsules(self, images: Tensor) -> Capsules:
        poses, activations = self.primary(self.stem(self.standardised(images)))
        for layer in self.routed:
            poses, activations = layer(poses, activations)
        routed: Capsules = self.classes(poses, activations)
        return routed


class EMCapsNet(MatrixCapsNet):
    """A 5x5 convolution of stride 2, then capsule layers with EM routing, none of them padded.

    Initial weights are those of the authors' code (google-research, capsule_em), normal and cut off at two deviations:
    0.05 for the convolution, whose biases are 0.1, 0.5 and 3 for the poses and the activations of primary capsules,
    0.3 for convolutional capsules. Two starts are ours. Class capsules have 0.5 where theirs have 0.01, with which all
    classes of a narrow copy have the same activation to four digits; at full width on digits they differ in the fourth
    even so, and it learns. beta_u of convolutional capsules is 2, with which their mean activations on digits are 0.48
    and 0.83; all other betas are 0. Deviations are not scaled with A: with 256 channels most activations of primary
    capsules are near 0 or 1 at the start, and the first routed layer's are 0.04 in the mean.

    Args:
        in_shape: the images' (channels, height, width), at least 17x17.
        num_classes: how many classes to tell apart.
        widths: A, B, C, D: channels, primary capsules, and capsules of the two convolutional layers.
        iterations: of the routing.
        competition: between the parents of convolutional capsules; see `ConvCapsules`. "map" is the paper's.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.
    """

    def __init__(
        self,
        *,
        in_shape: ImageShape = MNIST,
        num_classes: int = 10,
        widths: tuple[int, int, int, int] = (32, 32, 32, 32),
        iterations: int = 3,
        competition: str = "positions",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_shape, num_classes, smallest=SMALLEST, mean=mean, std=std)
        A, B, C, D = widths
        options: dict[str, Any] = {"routing": "em", "iterations": iterations, "matrix": True}
        self.stem = nn.Sequential(nn.Conv2d(in_shape[0], A, 5, stride=2), nn.ReLU())
        self.primary = PrimaryCapsules(A, B, POSE, activation="logistic", bias=False)
        self.routed = nn.ModuleList(
            [
                ConvCapsules(B, C, POSE, POSE, 3, stride=2, competition=competition, **options),
                ConvCapsules(C, D, POSE, POSE, 3, stride=1, competition=competition, **options),
            ]
        )
        self.classes = FullyConnectedCapsules(D, num_classes, POSE, POSE, shared=True, coordinates=True, **options)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights; what the routing learns beside them starts from constants."""
        conv, *_ = self.stem.children()
        assert isinstance(conv, nn.Conv2d)
        assert conv.bias is not None
        nn.init.constant_(conv.bias, 0.1)
        poses = self.primary.out_caps * POSE
        deviations = [(conv.weight, 0.05), (self.primary.conv.weight[:poses], 0.5)]
        deviations += [(self.primary.conv.weight[poses:], 3.0)]
        for layer in self.routed:
            assert isinstance(layer, ConvCapsules)
            deviations.append((layer.transform.weight, 0.3))
        deviations.append((self.classes.transform.weight, 0.5))
        for weight, deviation in deviations:
            nn.init.trunc_normal_(weight, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)
        for name, parameter in self.named_parameters():
            if "beta" in name:
                parameter.fill_(BETA_U if name.startswith("routed.") and name.endswith("beta_u") else 0.0)


class VBCapsNet(MatrixCapsNet):
    """A 5x5 convolution of stride 2 with batch normalisation, then capsule layers with variational Bayes routing.

    Every capsule layer normalises poses and activations over the batch. Initial weights have the deviations of the
    authors' code (fabio-deep/Variational-Capsule-Routing): He's for the convolution, Glorot's for all others.

    Args:
        in_shape: the images' (channels, height, width), at least 17x17.
        num_classes: how many classes to tell apart.
        widths: A, B, C, D: channels, primary capsules, and capsules of the two convolutional layers.
        iterations: of the routing.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.
    """

    def __init__(
        self,
        *,
        in_shape: ImageShape = MNIST,
        num_classes: int = 10,
        widths: tuple[int, int, int, int] = (64, 8, 16, 16),
        iterations: int = 3,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_shape, num_classes, smallest=SMALLEST, mean=mean, std=std)
        A, B, C, D = widths
        options: dict[str, Any] = {"routing": "variational", "iterations": iterations, "matrix": True}
        conv = nn.Conv2d(in_shape[0], A, 5, stride=2, bias=False)
        nn.init.kaiming_uniform_(conv.weight)
        self.stem = nn.Sequential(conv, nn.BatchNorm2d(A), nn.ReLU())
        self.primary = PrimaryCapsules(A, B, POSE, activation="logistic", bias=False, batch_norm=True)
        for part in (self.primary.conv.weight[: B * POSE], self.primary.conv.weight[B * POSE :]):
            nn.init.xavier_uniform_(part.detach())
        self.routed = nn.ModuleList(
            [
                ConvCapsules(B, C, POSE, POSE, 3, stride=2, competition="map", std=_glorot(B, C, 9), **options),
                ConvCapsules(C, D, POSE, POSE, 3, stride=1, competition="map", std=_glorot(C, D, 9), **options),
            ]
        )
        self.classes = FullyConnectedCapsules(
            D, num_classes, POSE, POSE, shared=True, coordinates=True, std=_glorot(D, num_classes, 1), **options
        )


def _glorot(children: int, parents: int, positions: int) -> float:
    """The deviation of transforms between capsule types that each see a window of that many positions."""
    return float((2 / ((children + parents) * positions * POSE)) ** 0.5)


@register_model(in_shape=MNIST, recipe="capsnet_em")
def capsnet_em(**options: Any) -> EMCapsNet:
    """Matrix capsules with EM routing, 3 iterations, A = B = C = D = 32: 318,420 parameters.

    Hinton, Sabour and Frosst (2018), "Matrix capsules with EM routing". Published: 0.44 % on MNIST; 320K parameters as
    the P-CapsNets paper cites it. Here: 318,240 weights, 32 biases, and beta_a and beta_u of 74 capsule types. Widths,
    strides and the transforms shared over the last map are the paper's; initial weights, and that nothing is padded and
    primary capsules have no bias, are from the authors' code (google-research, capsule_em).

    That code differs from the paper in who competes for a child of a convolutional layer: the parents of one type, at
    the positions that see it, and not those of all types. Here it is followed: with three iterations between all types,
    competition="map", a narrow copy hardly learned (docs/zoo.md). So it is in learning beta_a in units of 5000, without
    which no class could be silenced. Where it differs otherwise, the paper is followed. It multiplies beta_u with
    1 + log(2 pi), moves a mean by nine tenths only, quarters the last layer's inverse temperature, and takes 1 from the
    primary capsules' activations before the logistic function. It sums logarithms of variances, where the paper has
    those of deviations, starts beta_a at -2500 and -5000, has places of about a tenth, and first shares of 1 over the
    parent types, where here they are 1 over the positions that see a child, for each type. Initial deviations of class
    capsules and beta_u are ours, see `EMCapsNet`.
    """
    return EMCapsNet(**options)


@register_model(in_shape=CIFAR_CROP, recipe="capsnet_em")
def capsnet_em_cifar(**options: Any) -> EMCapsNet:
    """Matrix capsules with EM routing for 24x24 crops of CIFAR-10, A = 256: 458,900 parameters.

    Published: 11.9 % with a first layer of 256 channels instead of 32; 458K parameters as the P-CapsNets paper cites
    it. Here: 458,496 weights, 256 biases and the betas. How images were cut is not published: as for
    `capsnet_dr_cifar`.
    """
    return EMCapsNet(**{"widths": (256, 32, 32, 32), **options})


@register_model(in_shape=MNIST, recipe="capsnet_vb")
def capsnet_vb(**options: Any) -> VBCapsNet:
    """Matrix capsules with variational Bayes routing, 3 iterations, the authors' default widths: 68,404 parameters.

    Ribeiro, Leontidis and Kollias (2020), "Capsule routing via variational Bayes", also called Capsule-VAE.
    Widths 64, 8, 16, 16 and priors are the defaults of fabio-deep/Variational-Capsule-Routing, where they make 68,714
    parameters for smallNORB; no error on MNIST is published. What differs: places that are added to votes are 0.17 to
    0.83 on MNIST, theirs a tenth of (row + 1) / rows; and a child's first shares are 1 over all parents that see it,
    theirs 1 over the parent types, so that children at the border, which fewer windows see, weigh more here.
    """
    return VBCapsNet(**options)


@register_model(in_shape=CIFAR, recipe="capsnet_vb")
def capsnet_vb_cifar(**options: Any) -> VBCapsNet:
    """Matrix capsules with variational Bayes routing for CIFAR-10, widths reconstructed: 323,044 parameters.

    Published: 11.2 % with 323K parameters; the widths are not. 256, 24, 24, 32 is a reconstruction: with A = 256, as
    Hinton et al. (2018) have it on CIFAR-10, the widths in steps of 8 that make 323K. Other widths make it too.
    """
    return VBCapsNet(**{"widths": (256, 24, 24, 32), **options})
