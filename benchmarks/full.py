"""`purecaps bench --full` in minutes: every case in a process of its own, compiling side by side, timed in turns.

    PYTHONPATH=src python benchmarks/full.py FOLDER [--csv benchmarks/results.csv] [--only 'train-*'] [--minutes 8]

Needs a CUDA device, 16 cores and 100 GB of memory. At the batch sizes that matter most all contenders are compared,
elsewhere those that anyone would choose. Each process writes FOLDER/CASE.csv, .json and .txt; the rows of each wave of
them then go to the CSV file, and two pictures are drawn of all. Nothing is timed while anything is compiled. So each
wave has a share of the minutes, and most of that to get ready: halfway nothing new is compiled, and at its end what is
still not ready is stopped, so that the others are timed.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from purecaps.evaluate import pictures
from purecaps.experiments.bench import Growth, Row, Turns, append_csv, plots, tables

CHOSEN = "conv graph,compile graph,triton graph,layers graph,one kernel graph,cnn graph"
GROWING = "conv graph,triton graph"  # others would have to be compiled for each size
BYTES = re.compile("layers|one kernel")  # from bytes to classes alone
MODELS = {"pcapsnet2": 128, "pcapsnet0": 128, "pcapsnet4": 256}  # and the batch it is trained with
TRAIN = (32, 1024, 4096)  # besides
FORWARD = (4096,)
INFERENCE = (1, 16, 128, 1024, 8192, 65536)
GROWN = ("pcapsnet2", "pcapsnet0")
AXES = ("batch", "size", "capsules", "depth")
SHARES = (1, 2, 1)  # of the waves in the time; the second has the most to compile
READY = 0.7  # of a wave's time; timing takes less than the rest
LOCK = "turns.lock"


@dataclass(frozen=True)
class Case:
    """One command: its name and what it is given."""

    name: str
    options: tuple[str, ...]


def waves() -> list[list[Case]]:
    """What may run at once, and fits the device's memory; a wave is timed when all of it are ready."""
    chosen: list[Case] = []
    inference: list[Case] = []
    everything: list[Case] = []
    for model, main in MODELS.items():
        everything += [timed(model, mode, main, everything=True) for mode in ("train", "forward")]
        chosen += [timed(model, "train", batch) for batch in TRAIN]
        chosen += [timed(model, "forward", batch) for batch in FORWARD]
        for batch in INFERENCE:
            # Everything at the largest batch only where it fits beside the others.
            full = batch == 128 or (model, batch) == ("pcapsnet2", 65536)
            (everything if full else inference).append(timed(model, "inference", batch, everything=full))
    grown = [
        Case(f"grow-{axis}-{model}", ("--grow", axis, "--models", model, "--contenders", GROWING))
        for axis in AXES
        for model in GROWN
    ]
    return [inference, [*everything, *chosen], grown]


def timed(model: str, mode: str, batch: int, *, everything: bool = False) -> Case:
    names = ",".join(name for name in CHOSEN.split(",") if mode == "inference" or not BYTES.search(name))
    contenders = () if everything else ("--contenders", names)
    options = ("--models", model, "--modes", mode, "--batches", str(batch), *contenders)
    return Case(f"{mode}-{model}-{batch}", options)


def command(case: Case, folder: Path, rounds: int, budget: float) -> list[str]:
    files = [f"--{kind}={folder / case.name}.{kind}" for kind in ("csv", "json")]
    how = ["--turns", str(folder / LOCK), "--rounds", str(rounds), "--budget", f"{budget:.0f}"]
    return [sys.executable, "-m", "purecaps", "bench", *case.options, *how, *files]


def run_wave(cases: list[Case], folder: Path, rounds: int, ready: float, until: float) -> None:
    """Starts all of them and waits; those that are stopped have left what they found.

    Args:
        cases: what to run.
        folder: for their files.
        rounds: how often each way is timed.
        ready: seconds after which whatever gets ready is stopped, because all others wait for it.
        until: the time when all are stopped.
    """
    turns = Turns(folder / LOCK)
    begun = time.monotonic()
    running = {}
    for case in cases:
        with open(folder / f"{case.name}.txt", "w") as log:
            # A compilation that has begun has as long again.
            started = command(case, folder, rounds, ready / 2)
            running[case.name] = subprocess.Popen(started, stdout=log, stderr=subprocess.STDOUT)
    while running:
        for name, process in list(running.items()):
            now, why = time.monotonic(), ""
            if process.poll() is None:
                if now > until:
                    why = ", the time is up"
                elif now > begun + ready and not turns.is_ready(process.pid):
                    why = ", was not ready in time"
                else:
                    continue
                process.kill()
                process.wait()
            del running[name]
            print(f"{now - begun:5.0f} s  {name}: exit code {process.returncode}{why}", flush=True)
        time.sleep(0.2)


def clear(cases: list[Case], folder: Path) -> None:
    """Removes what an earlier run left of the cases, and the rates of what may have been another machine."""
    for path in (folder / f"{case.name}.{kind}" for case in cases for kind in ("csv", "json", "txt")):
        path.unlink(missing_ok=True)
    for path in folder.glob(f"{LOCK}.*"):
        path.unlink()


def rows_in(cases: list[Case], folder: Path) -> tuple[list[Row], list[Growth]]:
    """What the cases have found, those of them that have written anything."""
    rows: list[Row] = []
    growths: list[Growth] = []
    for path in (folder / f"{case.name}.json" for case in cases):
        if not path.exists():
            continue
        found = json.loads(path.read_text())
        rows += [Row(**row) for row in found["rows"]]
        for growth in found.get("growth", ()):
            del growth["exponent"]  # it follows from the rest
            fields: dict[str, Any] = {name: tuple(x) if isinstance(x, list) else x for name, x in growth.items()}
            growths.append(Growth(**fields))
    return rows, growths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where each case writes what it found")
    parser.add_argument("--csv", type=Path, help="append all rows of this run to this file")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, default=8, help="after which what still runs is stopped")
    parser.add_argument("--only", nargs="+", default=["*"], help="patterns of the cases' names: train-pcapsnet2-*")
    parser.add_argument("--report-only", action="store_true", help="only show what FOLDER holds")
    options = parser.parse_args()
    if options.report_only and options.csv:
        parser.error("--csv: expected none with --report-only, whose rows the run has appended")
    options.folder.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + 60 * options.minutes
    asked = [
        (share, [case for case in wave if any(fnmatch.fnmatch(case.name, pattern) for pattern in options.only)])
        for share, wave in zip(SHARES, waves(), strict=True)
    ]
    asked = [(share, wave) for share, wave in asked if wave]
    cases = [case for _, wave in asked for case in wave]
    if not options.report_only:
        clear(cases, options.folder)
        for number, (share, wave) in enumerate(asked):
            # Of what the waves before have left, so that nothing is lost where they took less.
            time_of_wave = max(0.0, until - time.monotonic()) * share / sum(other for other, _ in asked[number:])
            run_wave(wave, options.folder, options.rounds, READY * time_of_wave, until)
            if options.csv:
                append_csv(options.csv, rows_in(wave, options.folder)[0])
    rows, growths = rows_in(cases, options.folder)
    usual = [row for row in rows if "," not in row.model]
    if usual:
        pictures.save(plots.plot(usual), options.folder / "bench.png")
    if growths:
        pictures.save(plots.plot_growth(growths), options.folder / "growth.png")
    for line in tables.lines(usual):
        print("  ".join(f"{cell:>12}" for cell in line))


if __name__ == "__main__":
    main()
