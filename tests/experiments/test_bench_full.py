"""benchmarks/full.py: a case that takes too long costs no other its row, and old files are not read."""

import dataclasses
import importlib.util
import json
import sys
import time
from pathlib import Path

import pytest

from purecaps.experiments.bench import Row

FOLDER = Path(__file__).parents[2] / "benchmarks"
# Stands for a case; "slow" gets ready for ever, and "quick" is ready and waits to be timed.
CASE = """
import fcntl, os, sys, time
lock, kind = sys.argv[1:]
with open(lock, "a") as file:
    if kind == "slow":
        fcntl.flock(file, fcntl.LOCK_SH)
        time.sleep(60)
    time.sleep(1)
    open(f"{lock}.ready-{os.getpid()}", "w").close()
    fcntl.flock(file, fcntl.LOCK_EX)
    open(f"{lock}-{kind}-was-timed", "w").close()
    print('{"ms": 1.0}')
"""
ROW = Row(
    date="2026-11-16", hardware="a GPU", torch="2.13.0", python="3.11.7", commit="abc", mode="train",
    model="pcapsnet2", batch=32, contender="conv", n=10, min_ms=1.0, median_ms=1.5, spread_ms=0.5,
    images_per_s=1e5, peak_mib=None, times_floor=12.0, precision="tf32", floor_ms=0.1, floor_by="bytes",
    kept_mib=None, note="",
)  # fmt: skip


def loaded(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def full():
    return loaded("full")


def leave(folder, name, model):
    for kind in ("csv", "txt"):
        (folder / f"{name}.{kind}").write_text("old")
    row = dataclasses.asdict(dataclasses.replace(ROW, model=model))
    (folder / f"{name}.json").write_text(json.dumps({"rows": [row]}))


def run(full, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["full.py", *map(str, arguments)])
    monkeypatch.setattr(full.pictures, "save", lambda figure, path: None)
    full.main()


def test_a_case_that_does_not_get_ready_is_stopped_and_the_ready_ones_are_timed(full, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(
        full, "command", lambda case, folder, *given: [sys.executable, "-c", CASE, str(folder / full.LOCK), case.name]
    )
    cases = [full.Case("quick", ()), full.Case("slow", ())]
    full.run_wave(cases, tmp_path, 1, 5.0, time.monotonic() + 20)
    assert (tmp_path / "turns.lock-quick-was-timed").exists()
    assert "slow: exit code -9, was not ready in time" in capsys.readouterr().out


def test_each_wave_has_its_share_of_the_time_to_get_ready_and_a_budget(full, tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(full, "run_wave", lambda wave, folder, rounds, ready, until: seen.append((len(wave), ready)))
    run(full, monkeypatch, tmp_path, "--minutes", 8)
    assert [count for count, _ in seen] == [len(wave) for wave in full.waves()]
    assert [ready for _, ready in seen] == pytest.approx([0.7 * 120, 0.7 * 320, 0.7 * 480], abs=2)  # none took any time
    given = full.command(full.Case("a", ()), tmp_path, 5, 42.0)
    assert given[given.index("--budget") + 1] == "42"


def test_a_run_begins_without_what_another_left(full, tmp_path, monkeypatch):
    leave(tmp_path, "train-pcapsnet2-32", "pcapsnet2")
    leave(tmp_path, "train-pcapsnet0-32", "pcapsnet0")
    for name in ("turns.lock.rates-tf32.json", "turns.lock.ready-123"):
        (tmp_path / name).touch()
    monkeypatch.setattr(full, "run_wave", lambda *given: None)
    csv = tmp_path / "all" / "results.csv"
    run(full, monkeypatch, tmp_path, "--only", "train-pcapsnet2-32", "--csv", csv)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        f"train-pcapsnet0-32.{kind}" for kind in ("csv", "json", "txt")
    ]
    assert csv.read_text().count("\n") == 1  # the headings


def test_only_the_rows_of_the_cases_that_were_run_are_appended(full, tmp_path, monkeypatch):
    leave(tmp_path, "train-pcapsnet0-32", "pcapsnet0")
    monkeypatch.setattr(full, "run_wave", lambda wave, folder, *given: leave(folder, wave[0].name, "pcapsnet2"))
    csv = tmp_path / "all" / "results.csv"
    run(full, monkeypatch, tmp_path, "--only", "train-pcapsnet2-32", "--csv", csv)
    assert [line.split(",")[6] for line in csv.read_text().splitlines()[1:]] == ["pcapsnet2"]


def test_a_report_appends_nothing(full, tmp_path, monkeypatch, capsys):
    leave(tmp_path, "train-pcapsnet2-32", "pcapsnet2")
    csv = tmp_path / "results.csv"
    with pytest.raises(SystemExit):
        run(full, monkeypatch, tmp_path, "--report-only", "--csv", csv)
    assert "--csv: expected none with --report-only" in capsys.readouterr().err
    run(full, monkeypatch, tmp_path, "--report-only")
    assert "pcapsnet2" in capsys.readouterr().out
    assert not csv.exists()
