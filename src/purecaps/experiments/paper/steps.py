"""A job that measures what a training step of many networks takes, each alone: time, memory, what torch.compile gives.

By it trainings may share a device, which makes their own times too long: the zoo takes these in their place. It also
says how many steps fit into a given time (`benchmarks/apply_zoo_steps.py`).
"""

from __future__ import annotations

import datetime
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from purecaps import provenance
from purecaps.experiments.paper.job import Job, Record, UnfinishedError, Workplace, keep
from purecaps.experiments.paper.step_sitting import Found, Task, cores, run_sitting
from purecaps.experiments.paper.training import STEP_MS, TrainingJob
from purecaps.train.recipe import Recipe

NAME = "zoo/steps"
REVISION = 1
MOST_AT_ONCE = 16  # get ready at once: a GPU's memory has to hold all of them
SECONDS = 4.5  # that each adds to a sitting on a machine of 16 cores, about
# Neither time nor memory of a step depends on them.
APART = ("steps", "step_every", "log_every", "eval_every", "checkpoint_every")


def settings_of(what: Mapping[str, Any]) -> dict[str, Any]:
    """What time and memory of a step depend on, of all that a training depends on; options at their default left out.

    So a row does not go out of date when there is a new option.
    """
    recipe, defaults = (
        {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}  # as JSON has it
        for values in (what["recipe"], Recipe().as_dict())
    )
    told = {name: value for name, value in recipe.items() if name not in APART and value != defaults.get(name)}
    return {"model": what["model"], "data": what["data"], "recipe": told}


def measured(record: Record, what: Mapping[str, Any], name: str, *, compiled: bool) -> list[Found]:
    """What was measured of a training, on whatever hardware.

    Args:
        record: of `StepsJob`.
        what: the training's, as its record has it.
        name: the training's.
        compiled: whether it went through torch.compile.
    """
    return [
        row
        for row in record["runs"]
        if (row["job"], row["compiled"]) == (name, compiled) and row["of"] == settings_of(what) and "why" not in row
    ]


@dataclass(frozen=True)
class StepsJob(Job):
    """Steps of many trainings, each timed alone; what time does not suffice for is left to the next sitting.

    Args:
        trainings: whose steps.
        both_ways: names of those that are timed through torch.compile, too.
    """

    trainings: tuple[TrainingJob, ...]
    both_ways: frozenset[str] = frozenset()

    @property
    def timed(self) -> bool:
        return True

    def what(self) -> dict[str, Any]:
        # Each row has its own settings: a changed recipe is measured anew, and the others stay.
        return {"kind": "steps", "revision": REVISION}

    def is_done(self, record: Record) -> bool:
        return not self._missing(record)

    def summary(self) -> str:
        return f"{len(self.trainings)} x a training step, timed alone, {len(self.both_ways)} of them also compiled"

    def seconds_left(self, record: Record | None) -> float:
        return SECONDS * len(self._missing(record))

    def obstacle(self, device: torch.device) -> str | None:
        if not hasattr(signal, "SIGSTOP"):
            return "it needs a system that can stop processes for a while"
        if self.scale == "full" and device.type != "cuda":
            return f"it needs a CUDA device, got {device.type}"
        return None

    def run(self, place: Workplace, record: Record | None) -> None:
        missing = self._missing(record)
        rows, parts = ([], []) if record is None else (self._current(record), list(record["parts"]))
        versions = provenance.versions(place.device)
        part = {
            "command": self.command,
            "finished": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "versions": versions,
        }

        def took(task: Task, found: Found) -> None:
            rows.append(
                {
                    "job": task.name,
                    "compiled": task.compiled,
                    **found,
                    "hardware": versions["hardware"],
                    "of": settings_of(task.asked),
                }
            )
            place.say(f"{task.name}{', compiled' if task.compiled else ''}: {_text(found)}")
            keep(self, place, {"runs": rows, "parts": [*parts, part]})

        tasks = [self._task(training, compiled, place.device) for training, compiled in missing]
        run_sitting(tasks, place.deadline, took, workers=min(cores(), MOST_AT_ONCE))
        if left := len(self._missing({"runs": rows})):
            raise UnfinishedError(f"{self.name}: {left} of {len(tasks)} steps are left to time")

    def _task(self, training: TrainingJob, compiled: bool, device: torch.device) -> Task:
        asked = {
            **training.what(),
            "networks": training.seeds if training.together else 1,
            "device": device.type,
            "compiled": compiled,
        }
        return Task(training.name, asked, (training.ms or STEP_MS[training.model])[0])

    def _wanted(self) -> list[tuple[TrainingJob, bool]]:
        both = [each for each in self.trainings if each.name in self.both_ways]
        return [*((each, False) for each in self.trainings), *((each, True) for each in both)]

    def _missing(self, record: Record | None) -> list[tuple[TrainingJob, bool]]:
        """What has no row; one that says why it has no time counts, or it would be tried for ever."""
        there = [] if record is None else [(row["job"], row["compiled"], row["of"]) for row in record["runs"]]
        return [
            (each, compiled)
            for each, compiled in self._wanted()
            if (each.name, compiled, settings_of(each.what())) not in there
        ]

    def _current(self, record: Record) -> list[Found]:
        """Rows of what is still trained so."""
        wanted = [(each.name, compiled, settings_of(each.what())) for each, compiled in self._wanted()]
        return [row for row in record["runs"] if (row["job"], row["compiled"], row["of"]) in wanted]


def _text(found: Found) -> str:
    if "why" in found:
        return str(found["why"])
    memory = "" if found["peak_memory_bytes"] is None else f", {found['peak_memory_bytes'] / 2**20:,.0f} MiB"
    return f"{found['ms']:.3g} ms{memory}, ready in {found['ready_s']:.0f} s"
