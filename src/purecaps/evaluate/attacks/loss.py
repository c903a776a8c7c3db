"""What an attack makes larger. For capsule lengths, which saturate, the choice decides how strong the attack is."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purecaps.errors import ConfigError, unknown_name
from purecaps.evaluate.trained import UnitPixels
from purecaps.losses import LENGTH_SCALE, margin_loss
from purecaps.models.guided import has_lengths

LOSSES = ("cross_entropy", "margin", "difference")


@dataclass(frozen=True)
class AttackLoss:
    """A loss of class scores, summed over the images, so that an image's gradient does not depend on its batch.

    Args:
        name: "cross_entropy" takes the softmax of `scale` times the scores. "margin" is the paper's training loss on
            lengths (0.5, 0.1, 0.5); its gradient is zero for an image that satisfies both margins, which such an attack
            then leaves alone. "difference" is the best wrong score less the true one, as Carlini and Wagner have it:
            it saturates nowhere, whatever the scores' scale.
        scale: what cross-entropy multiplies scores with: 1 for logits.
    """

    name: str = "cross_entropy"
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in LOSSES:
            raise unknown_name("loss", self.name, LOSSES)
        if not 0 < self.scale < math.inf:
            raise ConfigError(f"scale: expected a finite number above 0, got {self.scale}")

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        """The loss of scores [B, K] for classes [B]."""
        if self.name == "cross_entropy":
            return F.cross_entropy(self.scale * scores, labels, reduction="sum")
        if self.name == "margin":
            return margin_loss(scores, labels) * len(scores)
        return wrong_lead(scores, labels).sum()

    def of_any_other(self, scores: Tensor, labels: Tensor) -> Tensor:
        """What falls as scores [B, K] favour any class but [B], summed over the images.

        For cross-entropy that of all other classes together, -log(1 - p). Not less cross-entropy of the class itself,
        which has no end: what is learned for many images at once would go on about those that are wrong already.
        """
        if self.name != "cross_entropy":
            return -self(scores, labels)
        scaled = self.scale * scores
        return (scaled.logsumexp(dim=1) - _of_others(scaled, labels).logsumexp(dim=1)).sum()

    def __str__(self) -> str:
        if self.name == "cross_entropy":
            return "cross-entropy of the scores" + ("" if self.scale == 1 else f" times {self.scale:g}")
        return {"margin": "margin loss", "difference": "best wrong score less the true one"}[self.name]


def wrong_lead(scores: Tensor, labels: Tensor) -> Tensor:
    """By how much the best wrong score of each image exceeds the true one, [B]: above 0 it is misclassified."""
    return _of_others(scores, labels).amax(dim=1) - scores.gather(1, labels[:, None])[:, 0]


def _of_others(scores: Tensor, labels: Tensor) -> Tensor:
    """The scores with those of the true classes out of the running."""
    return scores.scatter(1, labels[:, None], -torch.inf)


def default_loss(model: nn.Module, name: str = "cross_entropy") -> AttackLoss:
    """The loss of that name for a model; cross-entropy takes a capsule network's lengths times 20."""
    network = model.network if isinstance(model, UnitPixels) else model
    return AttackLoss(name, LENGTH_SCALE if has_lengths(network) else 1.0)
