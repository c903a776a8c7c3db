"""The trainings behind the paper's figures of filters, correlations and the generalisation gap.

One set of networks serves all three: each is trained once, with 5,000 training images held out and the loss watched on
them and on 5,000 of the others. The test set is read once, at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from purecaps.data.types import Dataset
from purecaps.evaluate.correlation import correlate, kernels, mean_abs_of_few
from purecaps.experiments.paper.curves import CurveJob, short
from purecaps.experiments.paper.entry import Results
from purecaps.experiments.paper.job import Record
from purecaps.experiments.paper.scale import Scale
from purecaps.models.pcapsnet import PCapsNet
from purecaps.train import TrainedRun
from purecaps.train.recipe import Recipe
from purecaps.train.recipes import RECIPES

SEEDS = 5
HOME = "generalisation"
FEW = 16  # filters that pcapsnet2's first layer has; layers with more are also looked at that many at a time
LAYERS = 3  # whose matrices are kept
WATCHED: dict[str, Any] = {
    "val_size": 5000,
    "probe_size": 5000,
    "log_every": 250,
    "eval_every": 250,
    "checkpoint_every": 5000,
}


@dataclass(frozen=True)
class Run:
    """A network of the figures.

    Args:
        leaf: its job's own name.
        short: what it is.
        by: whose recipe trains it, where there are several.
        model: a registered model's name.
        recipe_name: what the tables call the recipe.
        recipe: how to train.
        ms: as for `CurveJob`.
        together: as for `TrainingJob`.
        seeds: how many are trained.
        precision: as for `Recipe`.
    """

    leaf: str
    short: str
    by: str
    model: str
    recipe_name: str
    recipe: Recipe
    ms: tuple[float, float]
    together: bool = True
    seeds: int = SEEDS
    precision: str = "tf32"

    @property
    def text(self) -> str:
        """What tables and figures call it."""
        return f"{self.short}, {self.by}" if self.by else self.short


PAPER = Run("pcapsnet2-paper", "pcapsnet2", "the paper's recipe", "pcapsnet2", "paper", RECIPES["paper"], (0.1, 0.04))
BEST = Run("pcapsnet2-best", "pcapsnet2", "our recipe", "pcapsnet2", "best", RECIPES["best"], (0.1, 0.04))
# Large: in half precision, and fewer of it.
BASELINE = Run(
    "cnn-baseline", "CNN of 35.4M", "", "cnn_baseline", "cnn", RECIPES["cnn"], (4.0, 4.0), together=False, seeds=3,
    precision="bf16",
)  # fmt: skip
SMALL = Run(
    "cnn-small", "CNN of 3,888", "", "cnn_small", "cnn_small", RECIPES["cnn_small"].replace(steps=20_000), (0.3, 0.1)
)
RUNS = (PAPER, BEST, BASELINE, SMALL)


@dataclass(frozen=True)
class InspectedJob(CurveJob):
    """Also keeps what the positions of each seed's kernels have in common; of seed 0 matrices, and capsule kernels."""

    def what(self) -> dict[str, Any]:
        return {**super().what(), "kind": "inspected"}

    def _evaluated(self, seed: int, network: nn.Module, trained: TrainedRun, dataset: Dataset) -> Record:
        found = [weight.cpu() for weight in kernels(network)]
        run = super()._evaluated(seed, network, trained, dataset)
        run["layers"] = [_about(weight) for weight in found]
        if seed == 0:
            run["matrices"] = [_nested(correlate(weight).matrix, 3) for weight in found[:LAYERS]]
            if isinstance(network, PCapsNet):
                run["kernels"] = [{"shape": list(w.shape), "numbers": _nested(w.flatten(), 4)} for w in found]
        return run


def _about(weight: Tensor) -> Record:
    found = correlate(weight)
    numbers = {
        "mean_abs": found.mean_abs,
        "mean": found.mean,
        "by_chance": found.by_chance,
        "squared_beyond_chance": found.squared_beyond_chance,
        "std": float(weight.std()),
        "largest": float(weight.abs().max()),
    }
    if found.filters >= FEW:
        numbers["mean_abs_of_few"] = mean_abs_of_few(weight, FEW)
    return {
        "shape": list(weight.shape),
        "positions": len(found.matrix),
        "filters": found.filters,
        **{name: short(value) for name, value in numbers.items()},
    }


def _nested(values: Tensor, digits: int) -> Any:
    if values.dim() == 1:
        return [short(value, digits) for value in values.tolist()]
    return [_nested(row, digits) for row in values]


def name_of(run: Run) -> str:
    return f"{HOME}/{run.leaf}"


def job_of(run: Run, scale: Scale) -> InspectedJob:
    recipe = scale.recipe(run.recipe.replace(**WATCHED, precision=run.precision))
    if scale.images is not None and run is BASELINE:
        recipe = recipe.replace(augment=("crop:6",))  # the same convolutions on few positions, for two CPU cores
    return InspectedJob(
        name=name_of(run),
        scale=scale.name,
        model=run.model,
        data="mnist",
        recipe_name=run.recipe_name,
        recipe=recipe,
        seeds=scale.most(run.seeds),
        images=scale.images,
        together=run.together,
        ms=run.ms,
    )


def of_seeds(results: Results, run: Run, field: str) -> list[Any]:
    """A field of each seed's record; none where nothing is recorded."""
    record = results.get(name_of(run))
    return [] if record is None else [each[field] for each in record["runs"] if field in each]


def layer_values(results: Results, run: Run, layer: int, field: str) -> tuple[float, ...]:
    """A number of one layer, one a seed."""
    layers: Sequence[Sequence[Record]] = of_seeds(results, run, "layers")
    return tuple(each[layer][field] for each in layers if layer < len(each) and field in each[layer])


def stored_kernels(results: Results, run: Run) -> list[Tensor]:
    """The kernels of seed 0, where they were kept."""
    found = of_seeds(results, run, "kernels")
    return [torch.tensor(each["numbers"]).view(each["shape"]) for each in found[0]] if found else []
