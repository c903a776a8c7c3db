"""Networks that end in a capsule for each class, with or without a decoder that makes the image of it again."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.models.decoder import Decoder
from purecaps.models.guided import Guided
from purecaps.models.images import ImageNetwork
from purecaps.nn.routing import Capsules


class ClassCapsules(ImageNetwork):
    """Base of networks whose scores are the activations of class capsules. Subclasses write `class_capsules`.

    `decoder` is a module that a subclass may set. In training it reconstructs the image from the true class's capsule,
    and what the reconstruction is off by is added to the loss. The arguments are those of `ImageNetwork`.
    """

    decoder: Decoder | None
    pose_rows = 1  # m; 4 where poses are 4 x 4 matrices

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_module("decoder", None)

    def class_capsules(self, images: Tensor) -> Capsules:
        """Poses [B, K, D] and activations [B, K] of the classes."""
        raise NotImplementedError

    def target(self, images: Tensor) -> Tensor:
        """What the decoder is to reconstruct of images [B, C, H, W] in [0, 1]."""
        return images

    def forward(self, images: Tensor) -> Tensor:
        return self.class_capsules(images).activations

    def capsules(self, images: Tensor) -> Tensor:
        """The class capsules [B, num_classes, 1, 1, 1, m, p]."""
        poses: Tensor = self.class_capsules(images).poses.unflatten(-1, (self.pose_rows, -1))
        return poses[:, :, None, None, None]

    def guided(self, images: Tensor, labels: Tensor) -> Guided:
        poses, scores = self.class_capsules(images)
        return Guided((scores,), self.reconstruction_penalty(poses, labels, images))

    def reconstruction_penalty(self, poses: Tensor, labels: Tensor, images: Tensor) -> Tensor:
        """What the decoder's error costs, a scalar []; 0 where there is no decoder."""
        if self.decoder is None:
            return poses.new_zeros(())
        return self.decoder.penalised(poses, labels, self.target(images)).penalty

    def reconstruct(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """The images again [B, C, H, W], from the capsules of `labels`; None takes each image's longest capsule."""
        if self.decoder is None:
            raise ConfigError("decoder: expected a network that was built with decoder=True, got one without")
        found: Tensor = self.decoder(self.class_capsules(images).poses, labels)
        return found
