"""`purecaps reproduce`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from purecaps.cli.options import Device
from purecaps.cli.support import err, out, say
from purecaps.data import cache
from purecaps.errors import ConfigError, PurecapsError
from purecaps.experiments.paper import ENTRIES, get_entries
from purecaps.experiments.paper.entry import Entry, Results
from purecaps.experiments.paper.job import Job, Workplace
from purecaps.experiments.paper.report import write_report
from purecaps.experiments.paper.runner import LEAST_SECONDS, Tally, run_jobs, select, usable
from purecaps.experiments.paper.scale import SCALES, Scale, get_scale
from purecaps.experiments.paper.workers import check_workers, run_shared, work_on, worker_command
from purecaps.train import pick_device
from purecaps.train.log import ConsoleWatcher
from purecaps.train.loop import InterruptedRunError

UNFINISHED = 75  # what sysexits.h calls a temporary failure: the same command goes on
SPARE_SECONDS = 20.0  # of a time limit, for the checkpoint and the report
OUT = {"full": Path("results"), "tiny": Path("results-tiny")}


def reproduce(
    *,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME...", help=f"What to run: {', '.join(ENTRIES)} or all.")
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of every training; else what each entry says.")] = None,
    only: Annotated[str | None, typer.Option(help="Only jobs of this shell pattern, such as 'pcapsnet0-*'.")] = None,
    scale: Annotated[
        str, typer.Option(help=f"{' or '.join(SCALES)}: tiny takes seconds, shows that it works and means nothing.")
    ] = "full",
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder of the results and the report; else results, or results-tiny.")
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(help="Folder of checkpoints and weights; else reproduce in the user's cache directory."),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(help=f"Seconds after which to stop, saved; exit code {UNFINISHED} if work is left."),
    ] = None,
    workers: Annotated[
        int,
        typer.Option(help="Processes that share the jobs. On one GPU four are more than twice as fast as one."),
    ] = 1,
    report_only: Annotated[bool, typer.Option("--report-only", help="Run nothing; write the report anew.")] = False,
    list_jobs: Annotated[bool, typer.Option("--list", help="Say what there is, what is done, what is left.")] = False,
    device: Device = "auto",
    worker: Annotated[
        Path | None, typer.Option(hidden=True, help="A file with the jobs of one of the workers.")
    ] = None,
) -> None:
    """Run tables and figures of the paper again, and set the paper's numbers beside ours.

    What is recorded is not run again, and what was begun is gone on with: the same command after Ctrl-C, a kill or a
    time limit loses nothing that was finished.
    """
    begun = time.monotonic()
    size = get_scale(scale)
    if not names and not (list_jobs or report_only):
        raise ConfigError(f"NAME: expected one or more of {', '.join(ENTRIES)} or all, got none; --list shows them")
    entries = get_entries(names or ["all"])
    place = Workplace(
        results=out_dir or OUT[scale],
        work=work or cache.default_root() / "reproduce",
        device=pick_device(device),
        watcher=lambda: ConsoleWatcher(err),
        say=say,
    )
    if time_limit is not None:
        if not time_limit > 0:
            raise ConfigError(f"--time-limit: expected seconds above 0, got {time_limit:g}")
        place.deadline = begun + time_limit - SPARE_SECONDS
    check_workers(workers)
    jobs = select(entries, size, only=only, seeds=seeds)
    if list_jobs:
        _print_list(entries, jobs, place)
        return
    if report_only:
        _report(place, size)
        return
    if worker is None and place.deadline < begun + LEAST_SECONDS:  # a worker says of each job that it is not begun
        least = SPARE_SECONDS + LEAST_SECONDS
        raise ConfigError(
            f"--time-limit: expected more than {least:g} seconds, to begin a job at all, got {time_limit:g}"
        )
    try:
        if worker is not None:
            work_on(worker, jobs, place)
            return
        tally = _run_all(jobs, place, workers, names or [], scale, seeds)
    except InterruptedRunError as stop:
        raise InterruptedRunError(f"{stop}; the same command goes on") from stop
    _report(place, size)
    _finish(tally, len(jobs))


def _run_all(jobs: list[Job], place: Workplace, workers: int, names: list[str], scale: str, seeds: int | None) -> Tally:
    if workers == 1:
        return run_jobs(jobs, place)
    words = ["reproduce", *names, "--scale", scale, "--device", place.device.type]
    words += ["--out", str(place.results), "--work", str(place.work)]
    words += [] if seeds is None else ["--seeds", str(seeds)]
    return run_shared(jobs, place, workers, worker_command(*words, "--worker"))


def _report(place: Workplace, scale: Scale) -> None:
    # Of all entries, not only of those that were named: results add up.
    for path in write_report(Results(place.results, scale), ENTRIES.values()):
        out.print(f"report: {path}", soft_wrap=True)


def _finish(tally: Tally, total: int) -> None:
    left_out = f", {len(tally.impossible)} left out on this machine" if tally.impossible else ""
    out.print(f"{len(tally.done)} of {total} jobs done{left_out}")
    if tally.failed:
        texts = "; ".join(f"{name}: {reason}" for name, reason in tally.failed.items())
        raise PurecapsError(f"{len(tally.failed)} failed: {texts}")
    if tally.elsewhere:
        say(f"left to other processes: {', '.join(tally.elsewhere)}")
    if tally.unfinished:
        say(f"not finished: {', '.join(tally.unfinished)}; the same command goes on")
    if tally.elsewhere or tally.unfinished:
        raise typer.Exit(UNFINISHED)


def _print_list(entries: list[Entry], jobs: list[Job], place: Workplace) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("job", "state", "left on an H200", "what it is"):
        table.add_column(column, justify="right" if column.startswith("left") else "left", no_wrap=True)
    named = {job.name: job for job in jobs}
    shown: set[str] = set()
    total = 0.0
    for entry in entries:
        table.add_row(entry.name, "", "", f"{entry.where}: {entry.title}")
        planned = [named[each.name] for each in entry.plan(get_scale(jobs[0].scale)) if each.name in named]
        own = [job for job in planned if job.name not in shown]
        for job in own:
            state, record = usable(job, place)
            left = job.seconds_left(record)
            total += left
            shown.add(job.name)
            text = "not run" if state == "absent" else state
            table.add_row(f"  {job.name}", text, _time_text(left), job.summary())
        if len(own) < len(planned):
            table.add_row(f"  and {len(planned) - len(own)} of those above", "", "", "")
    out.print(table)
    out.print(f"left in all: {_time_text(total)} on one H200 (estimate)")


def _time_text(seconds: float) -> str:
    return "-" if seconds == 0 else f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
