"""Trains the other authors' networks on one GPU in the time that there is: their steps timed, budgets set, all trained.

    PYTHONPATH=src python benchmarks/train_zoo.py runs/zoo --seconds 560

Everything goes to the folder named: records, checkpoints, the compilers' caches, steps.json and, at the end,
records.tar with the records and the budgets that they were made by. The same command goes on where one was stopped,
also with fresh sources: budgets are set again from the folder's steps.json, which is not measured twice. To take the
records over, unpack records.tar at the root of the repository and run `purecaps reproduce --report-only`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGETS = ROOT / "src/purecaps/experiments/paper/budgets.py"
RECORDS = ("table1/zoo-*.json", "table3/zoo-*.json", "zoo/*.json")
TRAININGS = "*zoo*-*"  # all of them, and not zoo/steps
STEPS_SECONDS = 310.0
LEAST_SECONDS = 80.0  # for trainings to begin at all
SPARE_SECONDS = 40.0  # evaluation looks at no clock
STOP_SECONDS = 20.0  # to save in, once told to


def reproduce(out: Path, seconds: float, *words: str) -> None:
    """`purecaps reproduce`, told to stop after the seconds, and made to a little later."""
    limit = seconds - SPARE_SECONDS
    command = [sys.executable, "-m", "purecaps", "reproduce", *words, "--time-limit", f"{limit:.0f}"]
    command += ["--out", str(out / "results"), "--work", str(out / "work")]
    print("$", *command, flush=True)
    process = subprocess.Popen(command)
    try:
        process.wait(seconds - STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def records(folder: Path) -> list[Path]:
    return [path for pattern in RECORDS for path in sorted(folder.glob(pattern))]


def take_over_recorded(out: Path) -> None:
    """What the repository has recorded is not trained again."""
    for path in records(ROOT / "results"):
        copy = out / "results" / path.relative_to(ROOT / "results")
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)


def measured_steps(out: Path, scale: str) -> Path:
    """What a step of each takes, as first measured: other figures would be other budgets, and void what was done."""
    steps = out / "steps.json"
    if not steps.exists():
        reproduce(out, STEPS_SECONDS + SPARE_SECONDS, "zoo", "--only", "steps", "--scale", scale)
        found = out / "results/zoo/steps.json"
        if not found.exists():
            raise SystemExit("no step was timed, so that no budget can be set: what is above says why")
        shutil.copy(found, steps)
    return steps


def set_budgets(steps: Path, words: list[str]) -> None:
    script = ROOT / "benchmarks/apply_zoo_steps.py"
    subprocess.run(
        [sys.executable, str(script), str(steps), "--results", str(ROOT / "results"), "--estimated", *words], check=True
    )


def bundle(out: Path) -> None:
    with tarfile.open(out / "records.tar", "w") as tar:
        for path in records(out / "results"):
            tar.add(path, Path("results") / path.relative_to(out / "results"))
        tar.add(BUDGETS, BUDGETS.relative_to(ROOT))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="the folder of everything")
    parser.add_argument("--seconds", type=float, required=True, help="for all of it")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--entries", default="table1,table3,zoo", help="whose networks, in this order")
    parser.add_argument("--only", default=TRAININGS, help="only trainings of this shell pattern")
    parser.add_argument("--scale", default="full", help="tiny rehearses it, in a copy of the repository")
    parser.add_argument(
        "--budgets",
        default="--seconds 25 --ready 12 --slow-seconds 60 --slow-ready 25",
        help="how apply_zoo_steps.py sets them",
    )
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ.setdefault(name, str(out / name.lower()))
    if options.scale == "full":
        take_over_recorded(out)
    set_budgets(measured_steps(out, options.scale), options.budgets.split())
    bundle(out)
    # One seed of each before the second of any.
    for seeds in (["--seeds", "1"], []):
        left = until - time.monotonic()
        if left < LEAST_SECONDS + SPARE_SECONDS:
            break
        words = [*options.entries.split(","), "--only", options.only, "--scale", options.scale, *seeds]
        reproduce(out, left, *words, "--workers", str(options.workers))
        bundle(out)
    print(f"{out / 'records.tar'}: {len(records(out / 'results'))} records", flush=True)


if __name__ == "__main__":
    main()
