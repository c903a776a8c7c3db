"""A job that attacks the networks of a training job, seed by seed."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from purecaps import provenance
from purecaps.data.types import Dataset
from purecaps.evaluate.attacks import (
    Attack,
    by_fgsm,
    by_noise,
    by_pgd,
    by_universal,
    default_loss,
    measure,
    train_universal,
)
from purecaps.evaluate.attacks.pgd import PGD_STEPS
from purecaps.evaluate.attacks.uap import UAP_STEPS
from purecaps.evaluate.classification import wilson_interval
from purecaps.evaluate.trained import TrainedModel
from purecaps.experiments.paper.job import Job, Record, UnfinishedError, Workplace, count_text, keep
from purecaps.experiments.paper.training import TrainingJob

START_SECONDS = 10


class Method(NamedTuple):
    """A way to attack.

    Args:
        text: what tables call it.
        steps: of pgd on each image, of the training of uap's generator.
        seconds: a seed takes on one H200, of a small network and of the large one; estimates.
        revision: a change of the code that changes its numbers counts this up, and they are measured anew.
        options: what else is not the default.
    """

    text: str
    steps: int
    seconds: tuple[float, float]
    revision: int = 1
    options: dict[str, Any] = {}  # noqa: RUF012 (never written to)


METHODS = {
    "uap": Method("universal, class y + 1", UAP_STEPS, (40, 120), revision=2),
    "uap-any": Method("universal, any class", UAP_STEPS, (40, 120), options={"aim": "any"}),
    "fgsm": Method("FGSM", 1, (2, 5)),
    "pgd": Method(f"PGD, {PGD_STEPS} steps", PGD_STEPS, (15, 90)),
    "pgd-restarts": Method(
        f"PGD, {PGD_STEPS} steps, 5 starts",
        PGD_STEPS,
        (75, 450),
        options={"restarts": 5, "loss": "difference"},
    ),
    "noise": Method("random signs", 1, (2, 5)),
}


@dataclass(frozen=True)
class AttackJob(Job):
    """Accuracy under perturbations of some sizes.

    Seed s of the target is attacked with the gradients of seed s of the source, so that both are drawn anew.

    Args:
        target: whose networks are attacked.
        source: whose gradients are taken; None takes the target's own.
        method: one of METHODS.
        eps: sizes: the most that a pixel of [0, 1] changes.
        counts: how many test images, the first ones; each is measured.
        seeds: how many networks.
        steps: as for `Method`.
    """

    target: TrainingJob
    source: TrainingJob | None
    method: str
    eps: tuple[float, ...]
    counts: tuple[int, ...]
    seeds: int
    steps: int

    def what(self) -> dict[str, Any]:
        return {
            "kind": "attack",
            "revision": METHODS[self.method].revision,
            "target": self.target.what(),
            "source": None if self.source is None else self.source.what(),
            "method": self.method,
            "eps": list(self.eps),
            "counts": list(self.counts),
            "steps": self.steps,
            "options": METHODS[self.method].options,
        }

    def defaults(self) -> dict[str, Any]:
        return {"target": self.target.defaults(), "source": {} if self.source is None else self.source.defaults()}

    def is_done(self, record: Record) -> bool:
        return not self._missing(record)

    def summary(self) -> str:
        by = "its own gradients" if self.source is None else f"gradients of {self.source.model}"
        how = f"{self.method} on {self.target.model}, {self.target.recipe_name}"
        return (
            f"{how}, {count_text(self.seeds)}"
            if self.method == "noise"
            else f"{how}, by {by}, {count_text(self.seeds)}"
        )

    def seconds_left(self, record: Record | None) -> float:
        small, large = METHODS[self.method].seconds
        each = large if self.target.model == "cnn_baseline" else small
        return START_SECONDS + each * len(self._missing(record)) if self._missing(record) else 0.0

    def with_seeds(self, count: int) -> AttackJob:
        return dataclasses.replace(self, seeds=count)

    def run(self, place: Workplace, record: Record | None) -> None:
        done = [] if record is None else list(record["runs"])
        parts = [] if record is None else list(record["parts"])
        missing = self._missing(record)
        for job in (self.target, self.source):
            if job is not None:
                job.ensure_weights(place, missing)
        for seed in missing:
            if place.overdue:
                raise UnfinishedError(f"{self.name}: stopped before seed {seed}")
            done = sorted([*done, self._attacked(place, seed)], key=lambda run: run["seed"])
            part = {
                "seeds": [seed],
                "command": f"{self.command} --seeds {self.seeds}",
                "finished": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
                "versions": provenance.versions(place.device),
            }
            parts = _joined(parts, part)
            keep(self, place, {"runs": done, "parts": parts})

    def _missing(self, record: Record | None) -> list[int]:
        there = set() if record is None else {run["seed"] for run in record["runs"]}
        return [seed for seed in range(self.seeds) if seed not in there]

    def _attacked(self, place: Workplace, seed: int) -> Record:
        def in_time(count: int) -> None:
            if place.overdue:
                raise UnfinishedError(f"{self.name}: stopped in seed {seed}, which will begin anew")

        target, about_target = self._network(self.target, place, seed)
        run: Record = {"seed": seed, "target": about_target}
        source = target
        if self.source is not None:
            source, run["source"] = self._network(self.source, place, seed)
        dataset = place.dataset(self.target.data, self.target.images)
        attack = self._attack(source, dataset, seed, in_time)
        run["on"] = []
        for count in self.counts:
            images, labels = dataset.test.images[:count], dataset.test.labels[:count]
            found = measure(target, images, labels, attack, progress=in_time)
            run["on"].append({"asked": count, **found.as_dict()})
        worst = run["on"][-1]["points"][-1]
        place.say(f"seed {seed}: {worst['accuracy']:.2f} % at eps {worst['eps']:g}")
        return run

    def _network(self, job: TrainingJob, place: Workplace, seed: int) -> tuple[nn.Module, Record]:
        """A trained network, and which one: weights that were gone have been trained again, perhaps elsewhere."""
        path = job.weights(place, seed)
        assert path is not None
        trained = TrainedModel.from_file(path).to(place.device)
        about = {name: trained.info.record[name] for name in ("test_error", "finished", "versions")}
        return trained.on_unit_pixels(), about

    def _attack(self, source: nn.Module, dataset: Dataset, seed: int, progress: Callable[[int], None]) -> Attack:
        if self.method == "noise":
            return by_noise(source, self.eps, seed=seed)
        options: dict[str, Any] = dict(METHODS[self.method].options)
        options["loss"] = default_loss(source, options.get("loss", "cross_entropy"))
        if self.method == "fgsm":
            return by_fgsm(source, self.eps, **options)
        options |= {"steps": self.steps, "seed": seed}
        if self.method.startswith("pgd"):
            return by_pgd(source, self.eps, **options)
        images, labels = dataset.train.images, dataset.train.labels
        options["progress"] = progress
        return by_universal(source, {eps: train_universal(source, images, labels, eps, **options) for eps in self.eps})


def attack_text(what: Record) -> str:
    """How the images of a record were moved, in a few words."""
    steps, options = what["steps"], what.get("options", {})
    said = [what["method"], *([f"{steps} steps"] if steps > 1 else []), *(f"{k} {v}" for k, v in options.items())]
    if what["method"] != "noise" and "loss" not in options:
        said.append("loss cross_entropy")
    return ", ".join(said)


def _joined(parts: Sequence[Record], part: Record) -> list[Record]:
    """Parts with one more seed; seeds made the same way on the same day share a part."""
    if parts and {**parts[-1], "seeds": []} == {**part, "seeds": []}:
        return [*parts[:-1], {**part, "seeds": [*parts[-1]["seeds"], *part["seeds"]]}]
    return [*parts, part]


def accuracies(record: Record | None, count: int, eps: float) -> tuple[float, ...]:
    """Accuracy in percent, one a seed, on the first `count` images; eps 0 is clean images."""
    points = [] if record is None else [_point(run, count, eps) for run in record["runs"]]
    return tuple(float(point["accuracy"]) for point in points)


def image_interval(record: Record, count: int, eps: float) -> tuple[float, float]:
    """The 95 % Wilson interval of the mean accuracy for one network on so few images: seeds share them."""
    points = [_point(run, count, eps) for run in record["runs"]]
    return wilson_interval(round(sum(point["correct"] for point in points) / len(points)), points[0]["n"])


def _point(run: Record, count: int, eps: float) -> Record:
    found: Record = next(each for each in run["on"] if each["asked"] == count)
    return next(point for point in (found["clean"], *found["points"]) if point["eps"] == eps)
