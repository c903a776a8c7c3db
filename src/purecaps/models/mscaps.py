"""MS-CapsNets: primary capsules of three sizes from three depths (Xiang et al. 2018, "MS-CapsNet")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.models.class_capsules import ClassCapsules
from purecaps.models.images import CIFAR, MNIST, ImageShape
from purecaps.models.registry import register_model
from purecaps.nn import to_capsules
from purecaps.nn.recompute import route_in_parts
from purecaps.nn.routing import Capsules, create_routing, squash
from purecaps.nn.transform import Transform

CHANNELS = 256
TYPES = 30
POSES = (4, 8, 12)
CLASS_POSE = 16


class MSCapsNet(ClassCapsules):
    """A convolution with ReLU, then 30 capsule types each of 4, 8 and 12 numbers, one routing from all to the classes.

    Each type has layers of its own: for 4 numbers one 9x9 convolution; for 8 a 5x5 to 16 channels, batch norm, tanh, a
    3x3; for 12 a 3x3 to 32 channels, ReLU, a 3x3 to 16, batch norm, tanh, a 3x3. The first of each has stride 2. The
    three maps have the same size. Types are groups of channels here. Scores are lengths.

    Args:
        in_shape: the images' (channels, height, width).
        num_classes: how many classes to tell apart.
        kernel: of the first convolution.
        iterations: of the routing.
        dropout: share of the primary capsules that are left out in training, each with all its votes.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.
    """

    stackable = False

    def __init__(
        self,
        *,
        in_shape: ImageShape = MNIST,
        num_classes: int = 10,
        kernel: int = 9,
        iterations: int = 3,
        dropout: float = 0.0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_shape, num_classes, smallest=kernel + 8, mean=mean, std=std)
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout: expected a number of [0, 1), got {dropout!r}")
        self.dropout = dropout
        self.conv = nn.Conv2d(in_shape[0], CHANNELS, kernel)
        short, middle, long = (TYPES * size for size in POSES)
        self.branches = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(CHANNELS, short, 9, stride=2)),
                nn.Sequential(
                    nn.Conv2d(CHANNELS, TYPES * 16, 5, stride=2),
                    nn.BatchNorm2d(TYPES * 16),
                    nn.Tanh(),
                    nn.Conv2d(TYPES * 16, middle, 3, groups=TYPES),
                ),
                nn.Sequential(
                    nn.Conv2d(CHANNELS, TYPES * 32, 3, stride=2, padding=1),
                    nn.ReLU(),
                    nn.Conv2d(TYPES * 32, TYPES * 16, 3, groups=TYPES),
                    nn.BatchNorm2d(TYPES * 16),
                    nn.Tanh(),
                    nn.Conv2d(TYPES * 16, long, 3, groups=TYPES),
                ),
            ]
        )
        height, width = ((size - kernel - 6) // 2 for size in in_shape[1:])
        self.branch_children = height * width * TYPES
        self.transforms = nn.ModuleList(
            Transform(self.branch_children, num_classes, size, CLASS_POSE) for size in POSES
        )
        self.routing = create_routing(
            "dynamic", children=None, parents=num_classes, pose_size=CLASS_POSE, iterations=iterations
        )

    def class_capsules(self, images: Tensor) -> Capsules:
        maps = self.conv(self.standardised(images)).relu()
        children = []
        for branch, size in zip(self.branches, POSES, strict=True):
            poses = squash(to_capsules(branch(maps), size)).flatten(1, 3)
            children.append(F.dropout1d(poses, self.dropout, self.training).flatten(1))
        return route_in_parts(
            self._route,
            torch.cat(children, dim=1),
            None,
            None,
            votes_per_image=len(POSES) * self.branch_children * self.num_classes * CLASS_POSE,
            recompute="auto",
            votes_at_once=None,
        )

    def _route(self, numbers: Tensor, activations: Tensor | None, parents: Tensor | None) -> Capsules:
        """From the numbers of all children [B, I * (4 + 8 + 12)] to class capsules."""
        children = numbers.split([self.branch_children * size for size in POSES], dim=1)
        votes = [
            transform(part.unflatten(1, (self.branch_children, size)))
            for transform, part, size in zip(self.transforms, children, POSES, strict=True)
        ]
        routed: Capsules = self.routing(torch.cat(votes, dim=1))
        return routed


@register_model(in_shape=MNIST, recipe="mscaps")
def mscaps(**options: Any) -> MSCapsNet:
    """MS-CapsNet: primary capsules of 4, 8 and 12 numbers from three depths, 12.17M parameters.

    Published: nothing on MNIST; 7.8 % on Fashion-MNIST, 7.3 % with dropout. The authors' code (cxiang26/MS-CapsNet)
    has the CIFAR-10 network only, see `mscaps_cifar`. For 28x28 images the first kernel is 9x9, as in CapsNet, which
    leaves the same maps; it is a reconstruction.
    """
    return MSCapsNet(**options)


@register_model(in_shape=CIFAR, recipe="mscaps")
def mscaps_cifar(**options: Any) -> MSCapsNet:
    """MS-CapsNet for CIFAR-10, first kernel 13x13: 12.28M parameters.

    Published: 11.2M parameters, 24.3 % on CIFAR-10. Here: 12,278,608, as the authors' code (cxiang26/MS-CapsNet)
    counts. Their code takes the softmax of the routing over children, and its first pass without one; here it is
    dynamic routing as Sabour et al. have it, over parents, and initial weights are PyTorch's, as theirs go with the
    other softmax. Their capsule dropout is off in their code and its rate is not published: dropout=0 here.
    """
    return MSCapsNet(**{"kernel": 13, **options})
