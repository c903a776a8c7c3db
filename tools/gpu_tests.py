"""Runs the tests that need a GPU in several processes at once: most of their time is a compiler's, on the CPU.

    PYTHONPATH=src python tools/gpu_tests.py OUT [--workers 12] [--seconds 500] [--only tests/ops]

Plain pytest, with nothing else installed. OUT/log.txt has what each process said; those that are not done in time are
stopped. Prints every failure by name, what was not reached, processes that broke, and how many passed; exits with 1
unless all did. Tests may skip themselves, but not for want of a GPU, and not all of them. Those that fetch data sets
are left out unless `--marker gpu` asks for them.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

OUTCOME = re.compile(r"^(\S+::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b", re.MULTILINE)
NAME = re.compile(r"^\S+\.py::.+$", re.MULTILINE)
PASSED = ("PASSED", "XPASS")
NO_DEVICE = "needs a CUDA device"  # as tests/conftest.py says it
SKIPPED = re.compile(rf"^SKIPPED \[(\d+)\] .*{NO_DEVICE}", re.MULTILINE)


def collected(only: list[str], marker: str, seconds: float) -> tuple[list[str], str]:
    """The names of all tests that have the marker, and what is wrong with files that could not be read."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", marker, *only]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        sys.exit(f"pytest could not collect the tests in {seconds:g} s")
    names = NAME.findall(done.stdout)
    if done.returncode and not names:
        sys.exit(f"pytest could not collect the tests (exit code {done.returncode}):\n{done.stdout[-2000:]}")
    return names, done.stdout[-2000:] if done.returncode else ""


def start(shard: list[str], number: int, out: Path) -> subprocess.Popen[bytes]:
    names = out / f"shard-{number}.args"
    names.write_text("\n".join(shard) + "\n")
    command = [sys.executable, "-m", "pytest", "-v", "-ra", "--tb=short", "-p", "no:cacheprovider", f"@{names}"]
    # Each has one of the cores; more threads would only fight over them.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with open(_log(out, number), "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)


def _finished(shards: list[list[str]], folder: Path, until: float) -> tuple[list[str], str]:
    """Runs the shards side by side: which of them broke, and what all of them said."""
    running = [start(shard, number, folder) for number, shard in enumerate(shards)]
    broken = []
    for number, process in enumerate(running):
        try:
            # 1 is of tests that failed, and those are named; 5, no tests, is wrong for a process that was given some.
            if process.wait(max(0.1, until - time.monotonic())) not in (0, 1):
                broken.append(f"shard {number}: exit code {process.returncode}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            broken.append(f"shard {number}: stopped, the time is up")
    return broken, "".join(_log(folder, number).read_text(errors="replace") for number in range(len(running)))


def _log(folder: Path, number: int) -> Path:
    return folder / f"shard-{number}.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="folder for log.txt")
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=500, help="after which what still runs is stopped")
    parser.add_argument("--only", nargs="*", default=[], help="files or folders of tests")
    parser.add_argument("--marker", default="gpu and not net")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + options.seconds
    names, unread = collected(options.only, options.marker, options.seconds)
    # Neighbours are cases of one test and take alike: they go to different processes.
    shards = [shard for number in range(options.workers) if (shard := names[number :: options.workers])]
    # Not in the folder: many files are a nuisance to bring back from where the GPU is.
    with tempfile.TemporaryDirectory() as folder:
        broken, text = _finished(shards, Path(folder), until)
    (options.out / "log.txt").write_text(text + unread)
    if unread:
        broken.append(f"some files could not be read:\n{unread}")
    outcomes = dict(OUTCOME.findall(text))
    bad = [name for name in names if outcomes.get(name) in ("FAILED", "ERROR")]
    missing = [name for name in names if name not in outcomes]
    for told, those in (("failed", bad), ("not reached", missing)):
        for name in those:
            print(f"{told}: {name}")
    without = sum(int(count) for count in SKIPPED.findall(text))
    if without:
        broken.append(f"{without} skipped: {NO_DEVICE}")
    for line in broken:
        print(line)
    passed, skipped = (sum(outcome in kinds for outcome in outcomes.values()) for kinds in (PASSED, ("SKIPPED",)))
    print(f"{passed} passed, {len(bad)} failed, {skipped} skipped, {len(missing)} not reached, of {len(names)}")
    sys.exit(1 if bad or missing or broken or not passed else 0)


if __name__ == "__main__":
    main()
