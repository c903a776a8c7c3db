"""Benchmarks that share a device: they get ready side by side and are timed one at a time."""

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time

import pytest
from bench_cases import CPU, SMALL, hurry

from purecaps.experiments.bench import Settings, Turns, bench
from purecaps.experiments.bench.contenders import parse
from purecaps.experiments.bench.floors import Rates
from purecaps.experiments.bench.run import Session

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


def late_rates(lock, measure):
    return Turns(lock).once("rates-fp32", Rates, measure)


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


def test_rates_that_are_known_are_read_while_others_get_ready(tmp_path, monkeypatch):
    hurry(monkeypatch)
    turns, found = Turns(tmp_path / "lock"), []

    def ask():
        found.append(Session(Settings(CPU, turns=turns))._rates("fp32"))

    ask()
    with turns.getting_ready():
        late = threading.Thread(target=ask, daemon=True)
        late.start()
        late.join(10)
        assert found == [Rates(1e11, 1e10)] * 2


def test_it_is_measured_once_by_several_that_begin_at_a_time_and_alone(tmp_path):
    lock, made = tmp_path / "lock", []

    def measure():
        with open(lock) as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        time.sleep(0.2)
        made.append(None)
        return Rates(1e12, 2e12)

    found = []
    together = [threading.Thread(target=lambda: found.append(late_rates(lock, measure))) for _ in range(3)]
    for each in together:
        each.start()
    for each in together:
        each.join(5)
    assert found == [Rates(1e12, 2e12)] * 3
    assert len(made) == 1


def test_the_first_process_measures_the_rates_of_all_kinds_of_cases(tmp_path, monkeypatch):
    hurry(monkeypatch)
    monkeypatch.setattr("purecaps.experiments.bench.run.inference_precision", lambda device: "fp16")
    turns = Turns(tmp_path / "lock")
    session = Session(Settings(CPU, rounds=2, turns=turns))
    assert session._rates("fp32") == Rates(1e11, 1e10)
    assert {path.name for path in tmp_path.glob("*.json")} == {"lock.rates-fp32.json", "lock.rates-fp16.json"}
    assert list(session.report.rates) == ["fp32"]


def test_a_process_is_ready_until_it_gets_something_ready_again(tmp_path):
    turns, me = Turns(tmp_path / "lock"), os.getpid()
    seen = [turns.is_ready(me)]
    for kind in (turns.getting_ready, turns.timing, turns.getting_ready):
        with kind():
            seen.append(turns.is_ready(me))
        seen.append(turns.is_ready(me))
    assert seen == [False, False, False, True, True, False, False]
    assert not turns.is_ready(me + 1)


def test_all_of_a_case_are_ready_before_any_is_timed(tmp_path, monkeypatch):
    hurry(monkeypatch)
    seen = []
    for kind in ("getting_ready", "timing"):
        monkeypatch.setattr(Turns, kind, lambda self, kind=kind: seen.append(kind) or contextlib.nullcontext())
    settings = Settings(CPU, rounds=2, turns=Turns(tmp_path / "lock"))
    report = bench([SMALL], {"forward": [33]}, parse(("naive", "conv", "cpu"), "cpu"), settings)
    assert [row.n for row in report.rows] == [2, 2, 2]
    # The case, the contenders, their first calls, and one stay for all of their times.
    assert seen == ["getting_ready", "getting_ready", "getting_ready", "timing"]


def test_without_a_file_there_is_nobody_to_wait_for():
    turns = Turns()
    begun = time.monotonic()
    with turns.timing(), turns.timing(), turns.getting_ready():
        pass
    assert time.monotonic() - begun < 1
