"""Benchmarks that share a device: they get ready side by side and are timed one at a time."""

import contextlib
import subprocess
import sys
import time

from bench_cases import CPU, SMALL, hurry

from purecaps.experiments.bench import Settings, Turns, bench
from purecaps.experiments.bench.contenders import parse
from purecaps.experiments.bench.floors import Rates

# Notes when it is inside, so that the test can see who was there at the same time.
INSIDE = """
import sys, time
from pathlib import Path
from purecaps.experiments.bench.turns import Turns
turns = Turns(Path(sys.argv[1]))
for kind in sys.argv[2].split(","):
    with getattr(turns, kind)():
        begun = time.monotonic()
        time.sleep(0.3)
        print(kind, begun, time.monotonic(), flush=True)
"""


def stays(path, *plans):
    """(kind, begin, end) of every stay of processes that each go through a plan."""
    running = [
        subprocess.Popen([sys.executable, "-c", INSIDE, path, plan], stdout=subprocess.PIPE, text=True)
        for plan in plans
    ]
    lines = [line.split() for process in running for line in process.communicate()[0].splitlines()]
    assert all(process.returncode == 0 for process in running)
    return [(kind, float(begin), float(end)) for kind, begin, end in lines]


def overlaps(one, other):
    return one[1] < other[2] and other[1] < one[2]


def test_a_process_that_times_is_alone(tmp_path):
    plan = "getting_ready,timing,getting_ready,timing"
    found = stays(tmp_path / "lock", plan, plan, plan)
    assert len(found) == 12
    for stay in found:
        if stay[0] == "timing":
            assert not any(overlaps(stay, other) for other in found if other is not stay)


def test_processes_get_ready_side_by_side(tmp_path):
    lock = Turns(tmp_path / "lock")
    with lock.getting_ready():
        found = stays(tmp_path / "lock", "getting_ready")  # ends, although the lock is held here
    assert len(found) == 1


def test_what_one_has_measured_the_others_take_over(tmp_path):
    made = []

    def measure():
        made.append(None)
        return Rates(1e12, 2e12)

    lock = tmp_path / "lock"
    assert Turns(lock).once("rates-fp32", Rates, measure) == Rates(1e12, 2e12)
    assert Turns(lock).once("rates-fp32", Rates, measure) == Rates(1e12, 2e12)
    assert len(made) == 1
    Turns().once("rates-fp32", Rates, measure)
    assert len(made) == 2


def test_all_of_a_case_are_ready_before_any_is_timed(tmp_path, monkeypatch):
    hurry(monkeypatch)
    seen = []
    for kind in ("getting_ready", "timing"):
        monkeypatch.setattr(Turns, kind, lambda self, kind=kind: seen.append(kind) or contextlib.nullcontext())
    settings = Settings(CPU, rounds=2, turns=Turns(tmp_path / "lock"))
    report = bench([SMALL], {"forward": [33]}, parse(("naive", "conv", "cpu"), "cpu"), settings)
    assert [row.n for row in report.rows] == [2, 2, 2]
    # The rates; then the case, the contenders, their first calls, and one stay for all of their times.
    assert seen == ["timing", "getting_ready", "getting_ready", "getting_ready", "timing"]


def test_without_a_file_there_is_nobody_to_wait_for():
    turns = Turns()
    begun = time.monotonic()
    with turns.timing(), turns.timing(), turns.getting_ready():
        pass
    assert time.monotonic() - begun < 1
