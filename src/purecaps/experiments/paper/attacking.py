"""A job that attacks the networks of a training job, seed by seed."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from purecaps.data.types import Dataset
from purecaps.evaluate.attacks import Attack, by_fgsm, by_pgd, by_universal, measure, train_universal
from purecaps.evaluate.attacks.pgd import PGD_STEPS
from purecaps.evaluate.attacks.uap import UAP_STEPS
from purecaps.evaluate.classification import wilson_interval
from purecaps.evaluate.trained import TrainedModel
from purecaps.experiments import run as runs
from purecaps.experiments.paper.job import Job, Record, UnfinishedError, Workplace, count_text, keep
from purecaps.experiments.paper.training import TrainingJob

REVISION = 1
# Seconds a seed on one H200, of a small network and of the large one; estimates.
SECONDS = {"fgsm": (2, 5), "pgd": (15, 90), "uap": (40, 120)}
START_SECONDS = 10
STEPS = {"fgsm": 1, "pgd": PGD_STEPS, "uap": UAP_STEPS}


@dataclass(frozen=True)
class AttackJob(Job):
    """Accuracy under perturbations of some sizes.

    Seed s of the target is attacked with the gradients of seed s of the source, so that both are drawn anew.

    Args:
        target: whose networks are attacked.
        source: whose gradients are taken; None takes the target's own.
        method: "fgsm", "pgd" or "uap".
        eps: sizes: the most that a pixel of [0, 1] changes.
        counts: how many test images, the first ones; each is measured.
        seeds: how many networks.
        steps: of pgd on each image, of the training of uap's generator.
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
            "revision": REVISION,
            "target": self.target.what(),
            "source": None if self.source is None else self.source.what(),
            "method": self.method,
            "eps": list(self.eps),
            "counts": list(self.counts),
            "steps": self.steps,
        }

    def defaults(self) -> dict[str, Any]:
        return {"target": self.target.defaults(), "source": {} if self.source is None else self.source.defaults()}

    def is_done(self, record: Record) -> bool:
        return not self._missing(record)

    def summary(self) -> str:
        by = "its own gradients" if self.source is None else f"gradients of {self.source.model}"
        return f"{self.method} on {self.target.model}, {self.target.recipe_name}, by {by}, {count_text(self.seeds)}"

    def seconds_left(self, record: Record | None) -> float:
        small, large = SECONDS[self.method]
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
                "versions": runs.versions(place.device),
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
        if self.method == "fgsm":
            return by_fgsm(source, self.eps)
        if self.method == "pgd":
            return by_pgd(source, self.eps, steps=self.steps, seed=seed)
        images, labels = dataset.train.images, dataset.train.labels
        options: dict[str, Any] = {"steps": self.steps, "seed": seed, "progress": progress}
        return by_universal(source, {eps: train_universal(source, images, labels, eps, **options) for eps in self.eps})


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
