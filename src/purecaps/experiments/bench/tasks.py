"""What is timed of a network: its forward pass, a training step, or the way from bytes to a class."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from purecaps.losses import length_cross_entropy
from purecaps.train.loss import loss_and_mistakes
from purecaps.train.recipe import Recipe

MODES = ("forward", "train", "inference")
# What class lengths are multiplied with in the loss, by every contender and in the specification.
SCALE = 10.0


class Scores(nn.Module):
    """Float images to scores, under autocast where bf16 is asked for."""

    def __init__(self, network: nn.Module, *, bf16: bool) -> None:
        super().__init__()
        self.network = network
        self.bf16 = bf16

    def forward(self, images: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self.bf16, cache_enabled=False):
            scores: Tensor = self.network(images)
        return scores.float()


class Loss(nn.Module):
    """Float images and labels to the loss, in torch's operations."""

    def __init__(self, network: nn.Module, *, bf16: bool) -> None:
        super().__init__()
        self.scores = Scores(network, bf16=bf16)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return length_cross_entropy(self.scores(images), labels, scale=SCALE)


class OwnLoss(nn.Module):
    """The same as `purecaps train` computes it: from the lengths before squashing, in one kernel."""

    def __init__(self, network: nn.Module, *, bf16: bool) -> None:
        super().__init__()
        self.network = network
        self.recipe = Recipe(loss="cross_entropy", scale=SCALE, precision="bf16" if bf16 else "fp32")

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return loss_and_mistakes(self.network, images, labels, self.recipe)[0]


class Classifier(nn.Module):
    """What a user would compile: uint8 images to classes."""

    def __init__(self, network: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.network = network
        self.dtype = dtype

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(images.to(self.dtype) / 255)
        return scores.argmax(dim=1)
