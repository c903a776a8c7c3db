"""Nothing is timed that does not compute the right thing: what the specification computes in float64.

Leaky ReLU has a kink: rounding takes numbers next to zero over to its other side, where the gradient is off by nine
tenths. So gradients are compared twice. With the network as it is, they have to agree as far as the kink allows. With a
slope of 1, which has no kink, they have to agree as far as rounding allows; torch.compile is spared that, because it
would compile another network for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purecaps.errors import PurecapsError
from purecaps.experiments.bench.tasks import SCALE
from purecaps.models import PCapsNet

Function = Callable[..., Tensor]


@dataclass(frozen=True)
class Tolerance:
    """Largest relative errors in norm.

    Args:
        outputs: of scores and loss.
        gradients: of each weight's gradient, across the kink.
        smooth: likewise with a slope of 1.
    """

    outputs: float
    gradients: float
    smooth: float


# Three to five times what float64 arithmetic on operands rounded to the precision loses in pcapsnet0, 2 and 4 (TF32:
# 5e-4, 4e-2, 2e-3; bf16: 3e-3, 1.4e-1, 1.5e-2), in bf16 more for activations that are kept in it. float32 leaves room
# for other ways of summation, such as Winograd's, and for a single number at the kink, which was seen to cost 3e-2.
# Deeper networks are allowed more in proportion (21 layers lose 2e-3, 0.27 and 3e-3 in TF32).
TOLERANCES = {
    "fp32": Tolerance(1e-4, 5e-2, 1e-4),
    "tf32": Tolerance(2e-3, 0.15, 6e-3),
    "bf16": Tolerance(2e-2, 0.4, 6e-2),
}
# How much shorter than the longest capsule the chosen one may be: twice what a length is off.
TIES = {"fp32": 1e-5, "fp16": 8e-3}


DEPTH = 5


class ParityError(PurecapsError):
    """A contender that computes something else."""


class Truth:
    """What the specification makes of a batch that repeats some images.

    Args:
        specification: the network in float64.
        images: the different images.
        labels: their classes.
        index: for each image of the batch, which one it is.
    """

    def __init__(self, specification: PCapsNet, images: Tensor, labels: Tensor, index: Tensor) -> None:
        self.specification, self.labels, self.index = specification, labels, index
        scale = 1 / 255 if images.dtype == torch.uint8 else 1.0
        self.images = images.double() * scale
        with torch.no_grad():
            self.scores = specification(self.images)
        self._gradients: dict[float | None, tuple[Tensor, dict[str, Tensor]]] = {}

    def tolerance(self, precision: str) -> Tolerance:
        """What a network of this depth may lose to rounding."""
        deeper = max(1.0, len(self.specification.blocks) / DEPTH)
        usual = TOLERANCES[precision]
        return Tolerance(deeper * usual.outputs, deeper * usual.gradients, deeper * usual.smooth)

    def loss_and_gradients(self, slope: float | None) -> tuple[Tensor, dict[str, Tensor]]:
        """The mean loss over the batch and its gradients by the weights' names.

        Args:
            slope: leaky ReLU's; None takes the network's own.
        """
        if slope not in self._gradients:
            share = self.index.bincount(minlength=len(self.images)).double() / len(self.index)
            with with_slope(self.specification, slope):
                losses = F.cross_entropy(SCALE * self.specification(self.images), self.labels, reduction="none")
                loss = (losses * share).sum()
                names, weights = zip(*self.specification.named_parameters(), strict=True)
                gradients = torch.autograd.grad(loss, weights)
            self._gradients[slope] = (loss.detach(), dict(zip(names, gradients, strict=True)))
        return self._gradients[slope]


@contextlib.contextmanager
def with_slope(network: PCapsNet, slope: float | None) -> Iterator[None]:
    """The network with another leaky ReLU."""
    blocks = network.capsule_blocks()
    before = [block.negative_slope for block in blocks]
    for block, usual in zip(blocks, before, strict=True):
        block.negative_slope = usual if slope is None else slope
    try:
        yield
    finally:
        for block, usual in zip(blocks, before, strict=True):
            block.negative_slope = usual


def require_scores(scores: Tensor, truth: Truth, precision: str) -> None:
    """Scores [B, K] of the whole batch are the specification's."""
    _require("scores", _error(scores, truth.scores[truth.index]), truth.tolerance(precision).outputs)


def require_classes(classes: Tensor, truth: Truth, precision: str) -> None:
    """Classes [B] of the whole batch are those of the longest capsules, but for ties within the precision."""
    scores = truth.scores[truth.index]
    shortfall = (scores.amax(dim=1) - scores.gather(1, classes[:, None]).squeeze(1)).max().item()
    if not shortfall <= TIES[precision]:
        raise ParityError(
            f"expected a class whose capsule is within {TIES[precision]:g} of the longest, "
            f"got one {shortfall:.2g} shorter"
        )


def require_training(
    loss_of: Function, network: nn.Module, inputs: tuple[Tensor, ...], truth: Truth, precision: str, *,
    compiled: bool,
) -> None:  # fmt: skip
    """Loss and gradients of all weights are the specification's.

    Args:
        loss_of: the function that is timed, from the inputs to the loss.
        network: the network inside it.
        inputs: the whole batch.
        truth: what is expected.
        precision: of the arithmetic.
        compiled: whether another slope would mean compiling again.
    """
    tolerance = truth.tolerance(precision)
    loss, gradients = _loss_and_gradients(loss_of, network, inputs)
    true_loss, true_gradients = truth.loss_and_gradients(None)
    _require("loss", _error(loss, true_loss), tolerance.outputs)
    _require_gradients(gradients, true_gradients, tolerance.gradients, "")
    if compiled:
        return
    assert isinstance(network, PCapsNet)
    with with_slope(network, 1.0):
        _, gradients = _loss_and_gradients(loss_of, network, inputs)
    _require_gradients(gradients, truth.loss_and_gradients(1.0)[1], tolerance.smooth, " at a slope of 1")


def _loss_and_gradients(
    loss_of: Function, network: nn.Module, inputs: tuple[Tensor, ...]
) -> tuple[Tensor, dict[str, Tensor]]:
    loss = loss_of(*inputs)
    loss.backward()
    gradients = {}
    for name, weight in network.named_parameters():
        assert weight.grad is not None, f"{name}: expected a gradient"
        gradients[name], weight.grad = weight.grad, None
    return loss.detach(), gradients


def _require_gradients(got: Mapping[str, Tensor], true: Mapping[str, Tensor], tolerance: float, when: str) -> None:
    for weight, gradient in true.items():
        _require(f"gradient of {weight}{when}", _error(got[weight], gradient), tolerance)


def _error(got: Tensor, true: Tensor) -> float:
    return float(torch.linalg.vector_norm(got.double() - true) / torch.linalg.vector_norm(true))


def _require(what: str, error: float, tolerance: float) -> None:
    if not error <= tolerance:  # NaN is not
        raise ParityError(f"expected the specification's {what} to {tolerance:g}, got {error:.2g} off")
