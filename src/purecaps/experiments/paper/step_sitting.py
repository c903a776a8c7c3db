"""Many training steps timed in one sitting: networks get ready side by side, and each is timed alone.

Getting ready is a compiler's work of a minute on one core, timing takes a second and wants the device to itself. So
as soon as one is ready, all that still get ready are stopped, and go on when it has been timed: nobody waits for the
slowest.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from purecaps.experiments.paper.step_process import FOUND, GO, READY

READY_SECONDS = 240.0  # that a network may take to get ready
TIMING_SECONDS = 60.0  # that timing may take
LOOK = 0.05  # seconds between two looks at the processes

Found = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A step to time.

    Args:
        name: what it is called.
        asked: what `step_process` is told.
        ms: about how many milliseconds it takes.
    """

    name: str
    asked: dict[str, Any]
    ms: float

    @property
    def compiled(self) -> bool:
        return bool(self.asked["compiled"])


def command(file: Path) -> list[str]:
    return [sys.executable, "-m", "purecaps.experiments.paper.step_process", str(file)]


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_sitting(tasks: Sequence[Task], until: float, keep: Callable[[Task, Found], None], *, workers: int) -> None:
    """Times what there is time for.

    Args:
        tasks: what to time. Those that are not compiled come first, in this order: their numbers are needed. Then of
            the compiled ones that of the longest training, which has most to gain.
        until: the `time.monotonic()` at which all are stopped, timed or not.
        keep: told of each at once what was found, or under "why" why nothing was.
        workers: how many get ready at once.
    """
    with tempfile.TemporaryDirectory(prefix="purecaps-steps-", ignore_cleanup_errors=True) as folder:
        sitting = _Sitting(Path(folder), until, workers, list(tasks), keep)
        try:
            sitting.run()
        finally:
            sitting.end()


@dataclass
class _Running:
    task: Task
    file: Path
    process: subprocess.Popen[bytes]
    begun: float

    @property
    def is_ready(self) -> bool:
        return self.file.with_suffix(READY).exists()

    def last_word(self) -> str:
        """Its last line that names an error: what CUDA says ends with advice."""
        lines = self.file.with_suffix(".log").read_text(errors="replace").strip().splitlines()
        errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        return [f"exit code {self.process.returncode}", *lines[-1:], *errors[-1:]][-1][:200]


@dataclass
class _Sitting:
    folder: Path
    until: float
    workers: int
    waiting: list[Task]
    keep: Callable[[Task, Found], None]
    running: list[_Running] = field(default_factory=list)
    leaving: list[subprocess.Popen[bytes]] = field(default_factory=list)  # timed, and on their way out
    pauses: list[tuple[float, float]] = field(default_factory=list)
    measured: dict[str, float] = field(default_factory=dict)  # milliseconds, of those not compiled
    again: list[Task] = field(default_factory=list)  # what found no memory the first time
    started: int = 0

    def run(self) -> None:
        while (self.running or self.waiting) and time.monotonic() < self.until:
            while self.waiting and len(self.running) < self.workers:
                self._start(self._next())
            for each in list(self.running):
                if each.is_ready:
                    self._time(each)
                elif each.process.poll() is not None:
                    self._failed(each, each.last_word())
                elif time.monotonic() - each.begun - self._paused(each.begun) > READY_SECONDS:
                    each.process.kill()
                    self._failed(each, f"was not ready in {READY_SECONDS:.0f} s")
            time.sleep(LOOK)

    def end(self) -> None:
        for process in (*(each.process for each in self.running), *self.leaving):
            process.kill()
            process.wait()

    def _next(self) -> Task:
        return self.waiting.pop(min(range(len(self.waiting)), key=lambda place: self._rank(self.waiting[place])))

    def _rank(self, task: Task) -> tuple[bool, bool, float]:
        longest = self.measured.get(task.name, task.ms) * task.asked["recipe"]["steps"]
        return task in self.again, task.compiled, -longest if task.compiled else 0.0

    def _start(self, task: Task) -> None:
        self.started += 1
        file = self.folder / f"{self.started}.json"
        file.write_text(json.dumps(task.asked))
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, cores() // self.workers)), **os.environ}
        with file.with_suffix(".log").open("wb") as log:
            process = subprocess.Popen(
                command(file), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        self.running.append(_Running(task, file, process, time.monotonic()))

    def _time(self, each: _Running) -> None:
        limit, found = min(time.monotonic() + TIMING_SECONDS, self.until), each.file.with_suffix(FOUND)
        with self._alone(each):
            each.file.with_suffix(GO).touch()
            while not found.exists() and each.process.poll() is None and time.monotonic() < limit:
                time.sleep(LOOK / 5)
        if found.exists():
            begun, ready = json.loads(each.file.with_suffix(READY).read_text())
            self.running.remove(each)
            self.leaving.append(each.process)
            took = {**json.loads(found.read_text()), "ready_s": round(ready - begun - self._paused(begun, ready), 1)}
            if not each.task.compiled:
                self.measured[each.task.name] = took["ms"]
            self.keep(each.task, took)
        elif each.process.poll() is not None:
            self._failed(each, each.last_word())
        elif limit < self.until:
            each.process.kill()
            self._failed(each, f"was not timed in {TIMING_SECONDS:.0f} s")

    def _failed(self, each: _Running, why: str) -> None:
        self.running.remove(each)
        each.process.wait()
        if "out of memory" in why.lower() and each.task not in self.again:  # others had it
            self.again.append(each.task)
            self.waiting.append(each.task)
            return
        self.keep(each.task, {"why": why})

    @contextlib.contextmanager
    def _alone(self, timed: _Running) -> Iterator[None]:
        others = [each.process for each in self.running if each is not timed and each.process.poll() is None]
        begun = time.monotonic()
        for process in others:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in others:
                process.send_signal(signal.SIGCONT)
            self.pauses.append((begun, time.monotonic()))

    def _paused(self, begun: float, end: float = float("inf")) -> float:
        """How long all were stopped between two times."""
        return sum(max(0.0, min(end, last) - max(begun, first)) for first, last in self.pauses)
