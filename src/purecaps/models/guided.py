"""What a network tells those who train and evaluate it, beside its scores."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeGuard

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

EVAL_BATCH = 1000


class Guided(NamedTuple):
    """What a network gives when it is shown the labels too, as it is in training only.

    Args:
        scores: one or more sets of class scores [B, K]. The recipe's loss is taken of each and summed; mistakes are
            counted by the first.
        penalty: what is added to the loss, already weighted: a scalar [].
    """

    scores: tuple[Tensor, ...]
    penalty: Tensor


class GuidedNetwork(Protocol):
    """A network with the hook."""

    def guided(self, images: Tensor, labels: Tensor) -> Guided:
        """Images [B, C, H, W] and their classes, int64 [B]."""
        ...


def is_guided(network: nn.Module) -> TypeGuard[GuidedNetwork]:
    """Whether a network is trained through `guided`, rather than by the scores of its forward pass alone."""
    return callable(getattr(network, "guided", None))


def has_lengths(network: nn.Module) -> bool:
    """Whether its scores are capsule lengths rather than logits."""
    return bool(getattr(network, "scores_are_lengths", hasattr(network, "capsules")))


def stack_obstacle(network: nn.Module) -> str | None:
    """Why several networks like this one cannot be trained side by side as a `ModelStack`; None where they can.

    A stack has one more axis of weights, but none of what layers note of the batches they saw. A network that fills
    a device alone can decline by the attribute `stackable = False`.
    """
    for name, module in network.named_modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            return f"{type(module).__name__} {name!r}, which keeps running statistics"
    return None if getattr(network, "stackable", True) else f"{type(network).__name__}, which fills a device alone"


def eval_batch(network: nn.Module) -> int:
    """How many images it is evaluated on at once: its attribute `eval_batch` where it has one."""
    return int(getattr(network, "eval_batch", EVAL_BATCH))
