"""One contender in one case: made ready, held against the specification, and then run."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from purecaps.experiments.bench import parity, timing
from purecaps.experiments.bench.case import Case
from purecaps.experiments.bench.contenders import Contender, Way
from purecaps.experiments.bench.outcome import Measured
from purecaps.experiments.bench.timing import Prepared
from purecaps.train.optimiser import make_optimiser
from purecaps.train.recipe import Recipe

# Small, so that thousands of steps on one batch take the weights nowhere.
RATE = 1e-4


class Runner:
    """A contender that is ready to be timed.

    Args:
        contender: who.
        case: on what. Training is held against the specification here, outputs in `prepare`.
    """

    def __init__(self, contender: Contender, case: Case) -> None:
        self.contender, self.case = contender, case
        entrant = contender.make(case)
        self.note = entrant.note
        self.kept_mib: float | None = None
        function, images = entrant.function, case.images
        if case.mode != "train":
            self._step: Callable[[], Tensor] = torch.inference_mode()(lambda: function(images))
            return
        network, labels = entrant.network, case.labels
        if contender.exact:
            parity.require_training(
                function, network, (images, labels), case.truth, case.precision,
                compiled=contender.compiled,
            )  # fmt: skip
        self.kept_mib = timing.kept_mib(lambda: function(images, labels), case.device)
        optimiser = optimiser_of(network, case.device, own=contender.own)
        optimiser.zero_grad(set_to_none=True)

        def step() -> Tensor:
            loss = function(images, labels)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            return loss.detach()

        self._step = step

    def prepare(self, way: Way) -> Prepared:
        """The step warmed up, and captured where the way is a graph; its output is then the specification's."""
        case = self.case
        prepared = timing.prepare(self._step, case.device, graph=way.graph)
        if self.contender.exact and case.mode == "forward":
            parity.require_scores(prepared.output, case.truth, case.precision)
        if self.contender.exact and case.mode == "inference":
            parity.require_classes(prepared.output, case.truth, case.precision)
        return prepared


class Timed:
    """A way that is being timed.

    Args:
        runner: the contender, ready.
        way: how it is launched.
    """

    def __init__(self, runner: Runner, way: Way) -> None:
        self._runner, self._prepared = runner, runner.prepare(way)
        self._times: list[float] = []
        self._calls = 1

    def once_more(self) -> None:
        took, self._calls = timing.milliseconds(self._prepared.call, self._runner.case.device, self._calls)
        self._times.append(took)

    def measured(self) -> Measured:
        return Measured(tuple(self._times), self._prepared.peak_mib, self._runner.kept_mib, self._runner.note)


def optimiser_of(network: nn.Module, device: torch.device, *, own: bool) -> torch.optim.Optimizer:
    """Adam in one kernel: torch's, or this library's as `purecaps train` has it.

    Args:
        network: whose weights to train.
        device: where they are.
        own: which of the two.
    """
    if not own:
        return torch.optim.Adam(network.parameters(), lr=RATE, fused=True, capturable=device.type == "cuda")
    optimiser = make_optimiser(network, Recipe(lr=RATE))
    if device.type == "cuda":
        for group in optimiser.param_groups:
            group["lr"], group["capturable"] = torch.tensor(RATE, device=device), True
    return optimiser
