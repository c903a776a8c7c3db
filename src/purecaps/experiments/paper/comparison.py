"""What the ablations share: variants of a network, trained alike, and a table that sets them side by side."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from purecaps.experiments.paper.cells import NONE, error_text, mean_text, plain
from purecaps.experiments.paper.curves import CurveJob
from purecaps.experiments.paper.entry import Picture, Results, Row, Table
from purecaps.experiments.paper.figures import Line, seeds_and_claims
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.verdict import Sample
from purecaps.models.cnn import ConvNet
from purecaps.models.pcapsnet import PCapsNet
from purecaps.models.registry import build_model
from purecaps.train.recipe import Recipe
from purecaps.train.recipes import RECIPES

SEEDS = 5
LR = 0.01
# Our recipe, with 5,000 training images held out: they choose where there is something to choose.
RECIPE = RECIPES["best"].replace(val_size=5000, precision="tf32", eval_every=1000, checkpoint_every=5000)
PLAIN_RECIPE = RECIPE.replace(scale=1.0, init=None)  # the same for networks whose scores are logits
NOTE = (
    "Final iterate, mean ± standard deviation over seeds; all trained alike, on 55,000 images. held out: 5,000 other "
    "training images. training: error on the 55,000 as they are. The last column compares test errors; two means are "
    "told apart where they differ by more than their 95 % intervals, added in squares."
)

# Milliseconds a step on one H200, of one network and of each one more beside it; estimates. Where the fused kernels do
# not serve (g > 1, the diagonal gradient), conv2d does.
MS = {
    "pcapsnet0": (0.19, 0.15),
    "pcapsnet2": (0.10, 0.04),
    "pcapsnet3": (0.13, 0.07),
    "cnn": (0.3, 0.1),
    "conv2d": (0.6, 0.3),
}


@dataclass(frozen=True)
class Variant:
    """One line of a comparison.

    Args:
        group: what it is compared within, such as "pcapsnet2".
        text: what is different.
        jobs: its trainings, one a learning rate; the held-out images choose between them.
    """

    group: str
    text: str
    jobs: tuple[CurveJob, ...]

    def chosen(self, results: Results) -> CurveJob:
        """The job of the lowest mean error on held-out images; the first where none is recorded.

        One whose seeds are not all there is not chosen while another's are.
        """
        run = self._run(results)
        return min(run, key=lambda job: _held_out(job, results)) if run else self.jobs[0]

    def as_good(self, results: Results) -> list[CurveJob]:
        """Others that the held-out images cannot tell from the chosen one: their mean errors are the same number."""
        chosen = self.chosen(results)
        run = [job for job in self._run(results) if job is not chosen]
        return [job for job in run if math.isclose(_held_out(job, results), _held_out(chosen, results), abs_tol=1e-9)]

    def is_whole(self, results: Results) -> bool:
        """Whether every learning rate has been tried, with all seeds."""
        return all(len(results.values(job.name, "val_error")) >= job.seeds for job in self.jobs)

    def _run(self, results: Results) -> list[CurveJob]:
        run = [job for job in self.jobs if results.values(job.name, "val_error")]
        whole = [job for job in run if len(results.values(job.name, "val_error")) >= job.seeds]
        return whole or run


def _held_out(job: CurveJob, results: Results) -> float:
    return Sample(results.values(job.name, "val_error")).mean


def training(
    name: str,
    model: str,
    scale: Scale,
    *,
    ms: tuple[float, float],
    recipe: Recipe = RECIPE,
    recipe_name: str = "best",
    **changes: Any,
) -> CurveJob:
    """A job of an ablation.

    Args:
        name: its entry's and its own.
        model: a registered model's name.
        scale: how large.
        ms: as for `CurveJob`.
        recipe: how to train.
        recipe_name: what it started from.
        changes: fields of the recipe.
    """
    return CurveJob(
        name=name,
        scale=scale.name,
        model=model,
        data="mnist",
        recipe_name=recipe_name,
        recipe=scale.recipe(recipe.replace(**changes)),
        seeds=scale.most(SEEDS),
        images=scale.images,
        ms=ms,
    )


def paper_network(model: str, scale: Scale, lr: float = LR) -> CurveJob:
    """A network of the paper as it is: all ablations share these, and `ablation-plain` has their results."""
    return training(f"ablation-plain/{model}-lr{lr:g}", model, scale, ms=MS[model], lr=lr)


def at_scale(models: Sequence[str], scale: Scale) -> Sequence[str]:
    """All networks, or at a tiny scale the first one."""
    return models if scale.images is None else models[:1]


def jobs_of(variants: Iterable[Variant]) -> list[Job]:
    return [job for variant in variants for job in variant.jobs]


@dataclass(frozen=True)
class Difference:
    """How far a mean lies above another, and whether the two are told apart at 95 %."""

    value: float
    told_apart: bool

    @property
    def text(self) -> str:
        return f"{self.value:+.2f}" + ("" if self.told_apart else ", not told apart")

    @property
    def points(self) -> str:
        return f"{self.value:+.2f} points" + ("" if self.told_apart else ", not told apart")

    def bears_out(self, *, higher: bool) -> str:
        """What it says of a claim that it would be above zero, or below."""
        if not self.told_apart:
            return "is not decided by these seeds"
        return "is borne out" if (self.value > 0) is higher else "is contradicted"


def difference(values: Sequence[float], base: Sequence[float]) -> Difference | None:
    """Of two samples; None where one is empty."""
    if not values or not base:
        return None
    ours, theirs = Sample(tuple(values)), Sample(tuple(base))
    gap = ours.mean - theirs.mean
    return Difference(gap, abs(gap) > math.hypot(ours.half_interval(), theirs.half_interval()))


def error_difference(variant: Variant, base: Variant, results: Results) -> Difference | None:
    """Of the test errors of two variants."""
    return difference(*(results.values(each.chosen(results).name) for each in (variant, base)))


def table(title: str, variants: Sequence[Variant], results: Results, note: str = "") -> Table:
    """A line a variant; the first of each group is what the others of it are compared with."""
    tuned = any(len(variant.jobs) > 1 for variant in variants)
    columns = (
        "network",
        "variant",
        "parameters",
        "multiply-adds",
        *(("learning rate",) if tuned else ()),
        "held out, %",
        "test, %",
        "training, %",
        "against the first",
    )
    rows, base = [], variants[0]
    for variant in variants:
        base = base if variant.group == base.group else variant
        job = variant.chosen(results)
        parameters, work = size_of(job)
        errors = results.values(job.name)
        apart = None if variant is base else error_difference(variant, base, results)
        texts = (
            variant.group,
            variant.text,
            f"{parameters:,}",
            f"{work:,}",
            *((_rate_text(variant, job, results) if errors else NONE,) if tuned else ()),
            mean_text(results.values(job.name, "val_error")),
            error_text(errors),
            mean_text(results.values(job.name, "train_error")),
            NONE if apart is None else apart.text,
        )
        rows.append(Row(plain(*texts)))
    chosen = (
        "The learning rate of each is the one of the lowest error on held-out images; in brackets one with the very "
        "same error there, and * where not all rates have been tried yet. "
        if tuned
        else ""
    )
    return Table(title, columns, tuple(rows), columns[2:-1], f"{NOTE} {chosen}{note}".strip())


def _rate_text(variant: Variant, job: CurveJob, results: Results) -> str:
    others = ", ".join(f"{other.recipe.lr:g}" for other in variant.as_good(results))
    return f"{job.recipe.lr:g}" + (f" ({others})" if others else "") + ("" if variant.is_whole(results) else "*")


def rates_table(variants: Sequence[Variant], results: Results) -> Table:
    """What each learning rate gave on the held-out images, by which it was chosen."""
    rates = sorted({job.recipe.lr for variant in variants for job in variant.jobs})
    rows = []
    for variant in variants:
        by_rate = {job.recipe.lr: results.values(job.name, "val_error") for job in variant.jobs}
        errors = (error_text(by_rate[rate]) if rate in by_rate else NONE for rate in rates)
        rows.append(Row(plain(variant.group, variant.text, *errors)))
    columns = ("network", "variant", *(f"{rate:g}" for rate in rates))
    note = "Error on 5,000 held-out images, in percent. Test errors of what was not chosen are in the files."
    return Table("All learning rates", columns, tuple(rows), columns[2:], note)


def picture(variants: Sequence[Variant], results: Results, alt: str, caption: str) -> Picture:
    """A dot a seed, a row a variant."""
    lines, group = [], ""
    for variant in variants:
        values = results.values(variant.chosen(results).name)
        lines.append(Line(f"{variant.group}, {variant.text}", values, first=variant.group != group))
        group = variant.group
    return Picture("errors", seeds_and_claims(lines, "test error on MNIST, %"), alt, f"A dot a seed. {caption}")


def size_of(job: CurveJob) -> tuple[int, int]:
    """Parameters, and multiplications of one image."""
    with torch.device("meta"):
        model = build_model(job.model, None, 10, job.recipe.model_options())
    assert isinstance(model, PCapsNet | ConvNet)
    return sum(parameter.numel() for parameter in model.parameters()), model.multiply_adds()
