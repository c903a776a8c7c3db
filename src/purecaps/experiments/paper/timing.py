"""A job that times training iterations of one network at several batch sizes."""

from __future__ import annotations

import datetime
import time
from dataclasses import dataclass
from typing import Any

import torch

from purecaps import provenance
from purecaps.experiments.paper.job import Job, Record, UnfinishedError, Workplace, keep
from purecaps.models.registry import build_model
from purecaps.train.arithmetic import arithmetic
from purecaps.train.checkpoint import State
from purecaps.train.optimiser import make_optimiser
from purecaps.train.prepare import prepare
from purecaps.train.recipe import Recipe
from purecaps.train.step import make_stepper

REVISION = 1
WARM_UP = 10


@dataclass(frozen=True)
class TimingJob(Job):
    """Seconds for a number of training iterations: sampling, augmentation, forward, backward and Adam.

    Args:
        model: a registered model's name.
        data: a data set's name.
        recipe: how to train; its batch size is replaced.
        device_type: "cpu" or "cuda".
        batches: batch sizes.
        iterations: in one measurement.
        windows: measurements of each batch size.
        images: how many images of each split are taken; None takes all.
    """

    model: str
    data: str
    recipe: Recipe
    device_type: str
    batches: tuple[int, ...]
    iterations: int
    windows: int
    images: int | None = None

    @property
    def timed(self) -> bool:
        return True

    def what(self) -> dict[str, Any]:
        return {
            "kind": "timing",
            "revision": REVISION,
            "model": self.model,
            "data": self.data,
            "images": self.images,
            "device": self.device_type,
            "batches": list(self.batches),
            "iterations": self.iterations,
            "windows": self.windows,
            "recipe": {**self.recipe.as_dict(), "augment": list(self.recipe.augment)},
        }

    def defaults(self) -> dict[str, Any]:
        return {"recipe": {**Recipe().as_dict(), "augment": []}}

    def is_done(self, record: Record) -> bool:
        return len(record["runs"]) == len(self.batches)

    def summary(self) -> str:
        return f"{self.model}, {self.iterations} iterations {self.windows} times, {self.device_type}"

    def seconds_left(self, record: Record | None) -> float:
        if record is not None and self.is_done(record):
            return 0.0
        per_image = 5e-4 if self.device_type == "cpu" else 1e-5  # two cores; one H200
        return 20 + sum(self.batches) * per_image * self.iterations * self.windows

    def obstacle(self, device: torch.device) -> str | None:
        if self.device_type == "cuda" and device.type != "cuda":
            return f"it needs a CUDA device, got {device.type}"
        return None

    def run(self, place: Workplace, record: Record | None) -> None:
        device = place.device if self.device_type == "cuda" else torch.device("cpu")
        found = []
        for batch in self.batches:
            if place.overdue:
                raise UnfinishedError(f"{self.name}: stopped before batch {batch}")
            seconds = self._measure(place, batch, device)
            place.say(f"batch {batch}: {min(seconds):.3g} s for {self.iterations} iterations")
            found.append({"batch": batch, "seconds": seconds})
        part = {
            "command": self.command,
            "finished": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "versions": provenance.versions(device),
        }
        keep(self, place, {"runs": found, "parts": [part]})

    def _measure(self, place: Workplace, batch: int, device: torch.device) -> list[float]:
        warm_up = min(WARM_UP, self.iterations)
        steps = warm_up + self.iterations * self.windows
        recipe = self.recipe.replace(batch_size=batch, steps=steps, log_every=self.iterations)
        dataset = place.dataset(self.data, self.images)
        prepared = prepare(dataset, recipe, seeds=[0], device=device)
        torch.manual_seed(0)
        options = {**recipe.model_options(), **prepared.model_options}
        model = build_model(self.model, prepared.train.in_shape, dataset.num_classes, options).to(device)
        state = State(model, make_optimiser(model, recipe), {})
        seconds = []
        with arithmetic(recipe.precision, device):
            stepper = make_stepper(state, prepared.train, recipe, 0, graph=None)
            stepper(0, warm_up, lambda done: True)
            for first in range(warm_up, steps, self.iterations):
                begun = time.perf_counter()
                # It returns the losses on the host, so that the device has done all of it.
                losses, _ = stepper(first, first + self.iterations, lambda done: True)
                seconds.append(time.perf_counter() - begun)
                assert len(losses) == self.iterations
        return seconds
