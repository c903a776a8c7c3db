"""Several processes that share jobs: each takes what no other is at, and on a GPU they run at the same time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from purecaps.errors import ConfigError
from purecaps.experiments.paper.job import Job, Workplace
from purecaps.experiments.paper.mps import multi_process_service
from purecaps.experiments.paper.runner import Tally, run_jobs, usable
from purecaps.files import write_json
from purecaps.train.loop import InterruptedRunError

MOST_WORKERS = 64


def check_workers(count: int) -> None:
    if not 1 <= count <= MOST_WORKERS:
        raise ConfigError(f"--workers: expected an int in [1, {MOST_WORKERS}], got {count}")


def run_shared(jobs: Sequence[Job], place: Workplace, count: int, command: Sequence[str]) -> Tally:
    """As `run_jobs`, by several processes; then, in this one, what has to run alone.

    Args:
        jobs: what to run.
        place: where.
        count: how many processes.
        command: what starts one of them, but for the file that tells it its jobs; see `work_on`.

    Raises:
        InterruptedRunError: the user asked to stop; what was begun is saved.
    """
    tally = Tally(done=[job.name for job in jobs if usable(job, place)[0] == "done"])
    for name in tally.done:
        place.say(f"{name}: done")
    left = [job for job in jobs if job.name not in tally.done]
    together, alone = ([job for job in left if job.timed is timed] for timed in (False, True))
    if together:
        _add(tally, _by_workers(together, place, min(count, len(together)), command))
    if alone:
        _add(tally, run_jobs(alone, place))
    return tally


def work_on(file: Path, jobs: Sequence[Job], place: Workplace) -> None:
    """What one of the processes does: runs the jobs that the file names, and leaves there what became of them."""
    asked = json.loads(file.read_text())
    named = set(asked["jobs"])
    # The clock is the machine's: what a process took to start does not move the end.
    until = math.inf if asked["until"] is None else asked["until"]
    tally = run_jobs(
        [job for job in jobs if job.name in named], dataclasses.replace(place, shared=True, deadline=until)
    )
    write_json(file, dataclasses.asdict(tally))


def merged(jobs: Sequence[str], said: Sequence[Tally | None], recorded: Collection[str] = ()) -> Tally:
    """One tally of the processes': a job is whatever the luckiest of them says.

    Args:
        jobs: names of all of them.
        said: what the processes say; None is one that broke.
        recorded: whose records are whole, so that they are done even where the one that did them broke after that.
    """
    total = Tally()
    tallies = [each for each in said if each is not None]
    for name in jobs:
        if name in recorded or any(name in each.done for each in tallies):
            total.done.append(name)
        elif reason := next((each.failed[name] for each in tallies if name in each.failed), None):
            total.failed[name] = reason
        elif reason := next((each.impossible[name] for each in tallies if name in each.impossible), None):
            total.impossible[name] = reason
        elif len(tallies) == len(said) and all(name in each.elsewhere for each in tallies):  # none of ours was at it
            total.elsewhere.append(name)
        else:
            total.unfinished.append(name)
    return total


def _by_workers(jobs: Sequence[Job], place: Workplace, count: int, command: Sequence[str]) -> Tally:
    names = [job.name for job in jobs]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="purecaps-workers-"))
        on_gpu = place.device.type == "cuda"
        of_service = stack.enter_context(multi_process_service(place.say)) if on_gpu else {}
        files = [Path(folder) / f"{number}.json" for number in range(1, count + 1)]
        for file in files:
            write_json(file, {"jobs": names, "until": None if math.isinf(place.deadline) else place.deadline})
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        environment = {
            "OMP_NUM_THREADS": str(max(1, cores // count)),
            "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, cores // count)),
            **os.environ,
            **of_service,
            "PYTHONUNBUFFERED": "1",
        }
        codes = _run_processes([[*command, str(file)] for file in files], environment, place.say)
        found = [json.loads(file.read_text()) for file in files]
    said = [Tally(**each) if "done" in each else None for each in found]
    total = merged(names, said, {job.name for job in jobs if usable(job, place)[0] == "done"})
    for number, (tally, code) in enumerate(zip(said, codes, strict=True), start=1):
        if tally is None:
            total.failed[f"worker {number}"] = f"ended with exit code {code}"
    return total


def _run_processes(
    commands: Sequence[Sequence[str]], environment: dict[str, str], say: Callable[[str], None]
) -> list[int]:
    """Runs all of them at once, and says what they say, with their numbers; their exit codes."""
    processes: list[subprocess.Popen[str]] = []
    readers = []
    with _handed_on(processes) as stopped:
        for number, command in enumerate(commands, start=1):
            if stopped:
                break
            # A session of its own: Ctrl-C reaches it once, from here, and not a second time from the terminal, which
            # would mean at once.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                start_new_session=True,
            )
            processes.append(process)
            readers.append(threading.Thread(target=_tell, args=(process, f"{number}: ", say)))
            readers[-1].start()
        codes = [process.wait() for process in processes]
        for reader in readers:
            reader.join()
    if stopped:
        raise InterruptedRunError("stopped")
    return codes


def _tell(process: subprocess.Popen[str], before: str, say: Callable[[str], None]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            say(before + line.rstrip())


@contextlib.contextmanager
def _handed_on(processes: Sequence[subprocess.Popen[str]]) -> Iterator[list[int]]:
    """Hands signals to stop on to the processes, which save first; gives those that came."""
    came: list[int] = []

    def hand_on(number: int, frame: Any) -> None:
        came.append(number)
        for process in processes:
            process.send_signal(number)  # nothing happens to one that has ended

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _add(tally: Tally, other: Tally) -> None:
    tally.done += other.done
    tally.unfinished += other.unfinished
    tally.elsewhere += other.elsewhere
    tally.impossible |= other.impossible
    tally.failed |= other.failed


def worker_command(*words: str) -> list[str]:
    """This program with other words."""
    return [sys.executable, "-m", "purecaps", *words]
