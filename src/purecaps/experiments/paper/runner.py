"""Runs jobs one after the other: what is done is left alone, what was begun is gone on with."""

from __future__ import annotations

import fnmatch
import gc
import logging
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from filelock import Timeout

from purecaps.errors import ConfigError, PurecapsError
from purecaps.experiments.paper.entry import Entry
from purecaps.experiments.paper.job import Job, Record, UnfinishedError, Workplace, differences, read, read_at
from purecaps.experiments.paper.scale import Scale
from purecaps.malloc import keep_freed_memory
from purecaps.train.loop import InterruptedRunError

log = logging.getLogger("purecaps.experiments")

# A job is not begun with less time left than it takes to load data and kernels and to save again.
LEAST_SECONDS = 30.0

State = Literal["done", "part", "changed", "absent"]


@dataclass
class Tally:
    """What became of the jobs, by name.

    Args:
        done: recorded, now or before.
        unfinished: stopped by the deadline or not begun for it.
        elsewhere: being run by another process.
        impossible: what this machine cannot run, with the reason.
        failed: what broke, with the reason.
    """

    done: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)
    impossible: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)


def select(entries: Iterable[Entry], scale: Scale, *, only: str | None = None, seeds: int | None = None) -> list[Job]:
    """The jobs of some entries, each once: entries share jobs.

    Args:
        entries: whose jobs.
        scale: how large.
        only: a shell pattern of job names, with or without the entry's before it.
        seeds: how many seeds each is to have; None takes what the entry says.
    """
    if seeds is not None and seeds < 1:
        raise ConfigError(f"--seeds: expected an int >= 1, got {seeds}")
    jobs = {job.name: job for entry in entries for job in entry.plan(scale)}
    if only is not None:
        names = jobs.keys()
        jobs = {
            name: job for name, job in jobs.items() if fnmatch.fnmatch(name, only) or fnmatch.fnmatch(job.leaf, only)
        }
        if not jobs:
            raise ConfigError(f"--only: expected a pattern of some of {', '.join(names)}, got {only!r}")
    return [job if seeds is None else job.with_seeds(seeds) for job in jobs.values()]


def usable(job: Job, place: Workplace) -> tuple[State, Record | None]:
    """How a job stands, and the record that it goes on from; a record of another scale is refused."""
    record = read_at(place.results, job.name, job.scale)
    if record is None:
        return "absent", None
    if differences(job, record):
        return "changed", None
    return ("done" if job.is_done(record) else "part"), record


def run_jobs(jobs: Sequence[Job], place: Workplace) -> Tally:
    """Runs what is not done. One job's trouble does not keep the others from running.

    Raises:
        InterruptedRunError: the user asked to stop; what was begun is saved.
    """
    tally = Tally()
    if place.device.type == "cpu":
        keep_freed_memory()
    for job in jobs:  # all of them first: a folder of another scale is to be refused before anything runs
        usable(job, place)
    for number, job in enumerate(jobs, start=1):
        head = f"[{number}/{len(jobs)}] {job.name}"
        state, _ = usable(job, place)
        if state == "done":
            tally.done.append(job.name)
            if not place.shared:
                place.say(f"{head}: done")
            continue
        obstacle = job.obstacle(place.device)
        if obstacle is not None:
            tally.impossible[job.name] = obstacle
            place.say(f"{head}: left out: {obstacle}")
            continue
        if time.monotonic() + LEAST_SECONDS > place.deadline:
            tally.unfinished.append(job.name)
            place.say(f"{head}: not begun: too little time left")
            continue
        if state == "changed":
            old = read(place.results, job.name)
            assert old is not None
            place.say(f"{head}: recorded, but run anew: {'; '.join(differences(job, old))}")
        _run_one(job, place, head, tally)
    return tally


def _run_one(job: Job, place: Workplace, head: str, tally: Tally) -> None:
    try:
        with place.lock(job.name, wait=False):
            # Another process may have finished it between the look at it and the lock.
            state, record = usable(job, place)
            if state != "done":
                place.say(f"{head}: {job.summary()}")
                job.run(place, record)
            tally.done.append(job.name)
    except Timeout:
        tally.elsewhere.append(job.name)
        if not place.shared:
            place.say(f"{head}: another process is at it")
    except UnfinishedError as stop:
        tally.unfinished.append(job.name)
        place.say(str(stop))
    except InterruptedRunError:
        raise
    except Exception as error:
        # Whatever a compiler or a driver throws at one job, the next may run.
        first = (str(error).splitlines() or [""])[0]
        expected = isinstance(error, PurecapsError | torch.OutOfMemoryError)
        tally.failed[job.name] = first if expected else f"{type(error).__name__}: {first}"
        place.say(f"{job.name}: failed: {tally.failed[job.name]}")
        if not expected:
            log.exception("%s failed", job.name)
            _require_device(place)
    finally:
        # torch.compile keeps eight programs of one function and gives up on the ninth network that it meets.
        if "torch._dynamo" in sys.modules:  # which takes seconds to load
            torch._dynamo.reset()
        if place.device.type == "cuda":
            gc.collect()  # a captured graph holds its memory until it is collected
            torch.cuda.empty_cache()


def _require_device(place: Workplace) -> None:
    """Raises where an error has left the GPU unusable for this process: nothing more can run in it."""
    if place.device.type == "cuda":
        torch.cuda.synchronize()
