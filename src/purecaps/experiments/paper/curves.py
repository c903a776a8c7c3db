"""A training job that also keeps how loss and error went, seed by seed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from purecaps.data.types import Dataset
from purecaps.evaluate.generalisation import curves_of
from purecaps.experiments.paper.job import Record
from purecaps.experiments.paper.training import TrainingJob
from purecaps.train import TrainedRun


@dataclass(frozen=True)
class CurveJob(TrainingJob):
    """N seeds of a network under a recipe that holds images out, with the curves of each."""

    def what(self) -> dict[str, Any]:
        return {**super().what(), "kind": "curves"}

    def _evaluated(self, seed: int, network: nn.Module, trained: TrainedRun, dataset: Dataset) -> Record:
        curves = curves_of(trained.history, seed)
        return {
            **super()._evaluated(seed, network, trained, dataset),
            "curves": {name: [short(value) for value in column] for name, column in curves.items()},
        }


def short(value: float, digits: int = 5) -> float:
    """A number of so many significant digits, so that files stay small."""
    return float(f"{value:.{digits}g}")
