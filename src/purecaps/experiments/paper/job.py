"""A job: the least that is run, recorded and gone on with by itself. One job, one JSON file."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout

from purecaps import data
from purecaps.data.types import Dataset
from purecaps.errors import ConfigError, DataError, PurecapsError
from purecaps.experiments.paper.scale import first_images
from purecaps.files import write_json
from purecaps.train.log import Silent, Watcher

Record = dict[str, Any]


class UnfinishedError(PurecapsError):
    """The time that was given is over; what was begun is saved."""


@dataclass
class Workplace:
    """Where jobs run and what they may use.

    Args:
        results: folder of the JSON files, one a job.
        work: folder of what is being trained: checkpoints, and the weights of what is done.
        device: where to compute.
        deadline: the `time.monotonic()` at which training stops, with a checkpoint.
        load: from a data set's name to the set.
        watcher: makes who is told of a training's progress.
        say: told what happens.
        shared: other processes of the same command are at the same jobs, so that what they have needs no word.
    """

    results: Path
    work: Path
    device: torch.device
    deadline: float = float("inf")
    load: Callable[[str], Dataset] = lambda name: data.load(name)
    watcher: Callable[[], Watcher] = Silent
    say: Callable[[str], None] = lambda text: None
    shared: bool = False
    _loaded: dict[str, Dataset] = field(default_factory=dict)

    def dataset(self, name: str, images: int | None) -> Dataset:
        """A data set, or the first images of one."""
        if name not in self._loaded:
            self._loaded[name] = self.load(name)
        return first_images(self._loaded[name], images)

    @contextlib.contextmanager
    def lock(self, name: str, *, wait: bool = True) -> Iterator[None]:
        """A job's name for this process alone; waits for another one until the deadline, or not at all.

        Raises:
            filelock.Timeout: another process has it, and there was to be no waiting.
            UnfinishedError: another process had it until the deadline.
        """
        path = self.work / f"{name}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        longest = self.deadline - time.monotonic()
        lock = FileLock(path, timeout=(-1 if math.isinf(longest) else max(0.0, longest)) if wait else 0)
        try:
            held = lock.acquire()
        except Timeout as error:
            if wait:
                raise UnfinishedError(f"{name}: stopped waiting for another process") from error
            raise
        with held:
            yield

    @property
    def overdue(self) -> bool:
        return time.monotonic() >= self.deadline


@dataclass(frozen=True)
class Job(ABC):
    """What all jobs have.

    Args:
        name: "table1/pcapsnet0-paper": its entry and its own name, and so its file below the results.
        scale: the name of the scale it belongs to. Results of one scale never replace those of another.
    """

    name: str
    scale: str

    @property
    def entry(self) -> str:
        return self.name.split("/")[0]

    @property
    def leaf(self) -> str:
        return self.name.split("/")[1]

    @property
    def timed(self) -> bool:
        """Whether the time that it takes is among its results, so that nothing may run beside it."""
        return False

    @abstractmethod
    def what(self) -> dict[str, Any]:
        """Everything that its numbers depend on, as plain values; how many seeds are asked for is no part of it."""

    def defaults(self) -> dict[str, Any]:
        """What stood for a key of `what` before there was that key; see `differences`."""
        return {}

    @abstractmethod
    def is_done(self, record: Record) -> bool:
        """Whether a record of the same `what` has everything that is asked for."""

    @abstractmethod
    def summary(self) -> str:
        """What it does, in a few words."""

    @abstractmethod
    def seconds_left(self, record: Record | None) -> float:
        """What is left of it takes about this long on one H200."""

    def with_seeds(self, count: int) -> Job:
        """The same job with that many seeds, where it has seeds."""
        return self

    def obstacle(self, device: torch.device) -> str | None:
        """Why it cannot run there; None where it can."""
        return None

    @abstractmethod
    def run(self, place: Workplace, record: Record | None) -> None:
        """Does what `record` lacks and writes the whole by `keep`, each time that something is finished.

        Raises:
            UnfinishedError: the workplace's deadline came first.
        """

    @property
    def command(self) -> str:
        """The command line that makes its file."""
        scale = "" if self.scale == "full" else f" --scale {self.scale}"
        return f"purecaps reproduce {self.entry} --only {self.leaf}{scale}"


def count_text(seeds: int) -> str:
    return f"{seeds} seed{'s' if seeds != 1 else ''}"


def path_of(results: Path, name: str) -> Path:
    return results / f"{name}.json"


def read(results: Path, name: str) -> Record | None:
    """The record of a job; None where there is none."""
    path = path_of(results, name)
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{path}: expected the record of a job as JSON, got {error}; remove it to run anew") from error
    if not isinstance(record, dict) or not {"job", "scale", "what"} <= record.keys():
        raise DataError(f"{path}: expected the record of a job, got something else; remove it to run anew")
    return record


def read_at(results: Path, name: str, scale: str) -> Record | None:
    """The record of a job at a scale; one of another scale is refused."""
    record = read(results, name)
    if record is not None and record["scale"] != scale:
        raise ConfigError(
            f"--out: expected a folder for results of scale {scale}, got {results}, "
            f"whose {name}.json is of scale {record['scale']}"
        )
    return record


def keep(job: Job, place: Workplace, found: Record) -> Record:
    """Writes a job's record, in one go."""
    record = {"job": job.name, "scale": job.scale, "what": job.what(), **found}
    write_json(path_of(place.results, job.name), record)
    return record


def differences(job: Job, record: Record) -> list[str]:
    """How what a record was made of differs from what the job asks for now, one text a difference.

    A setting that the program did not have when the record was made counts as its default: a new option does not
    make old results void.
    """
    asked, made, defaults = (_flat(values) for values in (job.what(), record["what"], job.defaults()))
    made = {**{key: defaults[key] for key in asked.keys() & defaults.keys()}, **made}
    return [
        f"{key} was {made.get(key, 'not there')}, is {asked.get(key, 'gone')}"
        for key in sorted(asked.keys() | made.keys())
        if asked.get(key) != made.get(key)
    ]


def fingerprint(job: Job) -> str:
    """What tells the job's settings from others; settings at their default do not count, so a new one changes none."""
    defaults = _flat(job.defaults())
    told = {key: value for key, value in _flat(job.what()).items() if defaults.get(key) != value}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:10]


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    flat: dict[str, str] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = json.dumps(value)
    return flat
