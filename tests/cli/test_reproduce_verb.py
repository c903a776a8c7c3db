"""`purecaps reproduce` from the command line."""

import json
import sys
import time

import pytest
from filelock import FileLock
from typed import purecaps

from purecaps.experiments.paper import ENTRIES
from purecaps.experiments.paper import job as jobs


@pytest.fixture
def here(tmp_path, monkeypatch, digits):
    """A folder of its own, where every data set is the digits; reports have two entries, for they take time to draw."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PURECAPS_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(jobs.data, "load", lambda name: digits)
    shown = {name: ENTRIES[name] for name in ("table2", "table5")}
    monkeypatch.setattr(sys.modules["purecaps.cli.reproduce"], "ENTRIES", shown)
    return tmp_path


def test_a_tiny_job_is_run_recorded_and_reported_and_then_done(here, capsys):
    words = ("reproduce", "table2", "--only", "pcapsnet1-best", "--scale", "tiny", "--device", "cpu")
    assert purecaps(*words) == 0
    said = capsys.readouterr()
    assert "[1/1] table2/pcapsnet1-best: pcapsnet1, best, 2 seeds, 20 steps" in said.err
    assert said.out.splitlines()[-1] == "1 of 1 jobs done"
    record = json.loads((here / "results-tiny" / "table2" / "pcapsnet1-best.json").read_text())
    assert (record["scale"], len(record["runs"])) == ("tiny", 2)
    assert (here / "results-tiny" / "report.html").is_file()
    assert (here / "cache" / "reproduce" / "table2" / "pcapsnet1-best").is_dir()
    assert not (here / "results").exists()
    assert not (here / "cache" / "mnist").exists(), "no test may fetch anything"
    assert purecaps(*words) == 0
    assert "[1/1] table2/pcapsnet1-best: done" in capsys.readouterr().err


@pytest.fixture
def workers(monkeypatch, digits_file):
    """Gives workers that know digits alone, and that run some lines first."""

    def use(lines: str = "") -> None:
        code = f"""
import sys
from purecaps import cli, data
from purecaps.experiments.paper import job
digits = data.load({str(digits_file)!r})
job.data.load = lambda name: digits
{lines}
cli.main(sys.argv[1:])
"""
        verb = sys.modules["purecaps.cli.reproduce"]
        monkeypatch.setattr(verb, "worker_command", lambda *words: [sys.executable, "-c", code, *words])

    return use


def test_workers_share_the_jobs_and_one_report_is_written(here, capsys, workers):
    workers()
    words = ("reproduce", "table2", "--only", "pcapsnet1-*", "--scale", "tiny", "--device", "cpu", "--seeds", 1)
    assert purecaps(*words, "--workers", 2, "--time-limit", 300) == 0
    said = capsys.readouterr()
    for name in ("paper", "authors", "best"):
        assert said.err.count(f"table2/pcapsnet1-{name}: pcapsnet1, {name}, 1 seed, 20 steps") == 1
        assert len(json.loads((here / f"results-tiny/table2/pcapsnet1-{name}.json").read_text())["runs"]) == 1
    assert said.out.splitlines()[-1] == "3 of 3 jobs done"
    assert said.out.count("REPORT.md") == 1


def test_workers_whose_time_is_up_leave_work_and_have_not_failed(here, capsys, workers):
    workers("from purecaps.train.meter import Meter; Meter.seconds_per_step = 200.0")  # time is up after a step
    words = ("reproduce", "table2", "--only", "pcapsnet1-*", "--scale", "tiny", "--device", "cpu", "--seeds", 1)
    assert purecaps(*words, "--workers", 2, "--time-limit", 300) == 75
    said = capsys.readouterr()
    assert said.err.count("stopped at step 1 of 20") == 3
    assert said.out.splitlines()[-1] == "0 of 3 jobs done"
    assert "not finished: table2/pcapsnet1-paper, table2/pcapsnet1-authors, table2/pcapsnet1-best" in said.err


def test_a_worker_that_starts_late_says_so_of_its_jobs(here):
    file = here / "1.json"
    file.write_text(json.dumps({"jobs": ["table2/pcapsnet1-best"], "until": time.monotonic() + 29}))
    words = ("reproduce", "table2", "--scale", "tiny", "--device", "cpu")
    assert purecaps(*words, "--worker", file) == 0
    assert json.loads(file.read_text())["unfinished"] == ["table2/pcapsnet1-best"]


def test_the_list_says_what_is_there_and_what_is_left(here, capsys):
    assert purecaps("reproduce", "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if "table1/pcapsnet0-paper" in line]
    assert line.split()[1:5] == ["not", "run", "64", "s"]
    assert lines[-1].startswith("left in all: ")
    jobs = [line.split()[0] for line in lines if line.startswith("  ") and "/" in line.split()[0]]
    assert len(jobs) == len(set(jobs)), "what entries share is listed once"
    assert "  and 27 of those above" in [line.rstrip() for line in lines]
    assert purecaps("reproduce", "table5", "--list", "--only", "cpu") == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert list(here.iterdir()) == [], "a list writes nothing"


def test_the_report_alone_runs_nothing(here, capsys):
    assert purecaps("reproduce", "--report-only", "--out", "elsewhere") == 0
    assert "elsewhere/REPORT.md" in capsys.readouterr().out
    assert "not run yet" in (here / "elsewhere" / "REPORT.md").read_text()


def test_a_time_limit_that_leaves_work_has_an_exit_code_of_its_own(here, capsys, monkeypatch):
    monkeypatch.setattr("purecaps.experiments.paper.runner.LEAST_SECONDS", 1e6)
    words = ("reproduce", "table2", "--only", "pcapsnet1-*", "--scale", "tiny", "--device", "cpu", "--time-limit", 600)
    assert purecaps(*words) == 75
    said = capsys.readouterr()
    assert "0 of 3 jobs done" in said.out
    assert "not finished: table2/pcapsnet1-paper, table2/pcapsnet1-authors, table2/pcapsnet1-best" in said.err
    assert (here / "results-tiny" / "report.html").is_file(), "a report is written all the same"


def test_work_that_another_process_has_is_left_to_it_and_named(here, capsys):
    lock = here / "work" / "table2" / "pcapsnet1-best.lock"
    lock.parent.mkdir(parents=True)
    words = ("reproduce", "table2", "--only", "pcapsnet1-best", "--scale", "tiny", "--device", "cpu", "--work", "work")
    with FileLock(lock):
        assert purecaps(*words) == 75
    assert "left to other processes: table2/pcapsnet1-best" in capsys.readouterr().err


def test_a_machine_without_a_gpu_leaves_out_what_needs_one(here, capsys):
    words = ("reproduce", "table5", "--only", "cuda-*", "--scale", "tiny", "--device", "cpu")
    assert purecaps(*words) == 0
    said = capsys.readouterr()
    assert "table5/cuda-fp32: left out: it needs a CUDA device, got cpu" in said.err
    assert "0 of 2 jobs done, 2 left out on this machine" in said.out


def test_a_failed_job_is_an_error_after_the_others(here, capsys, monkeypatch):
    from purecaps.errors import PurecapsError
    from purecaps.experiments.paper.training import TrainingJob

    def fail(self, place, record):
        raise PurecapsError("expected luck, got none")

    monkeypatch.setattr(TrainingJob, "run", fail)
    assert purecaps("reproduce", "table2", "--only", "pcapsnet1-best", "--scale", "tiny", "--device", "cpu") == 1
    assert "1 failed: table2/pcapsnet1-best: expected luck, got none" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "NAME: expected one or more of table2, table5 or all, got none"),
        (("tabel1",), "unknown entry 'tabel1': did you mean table1"),
        (("all", "--scale", "big"), "unknown scale 'big': known: full, tiny"),
        (("all", "--time-limit", 0), "--time-limit: expected seconds above 0, got 0"),
        (("all", "--time-limit", 20), "--time-limit: expected more than 50 seconds, to begin a job at all, got 20"),
        (("all", "--only", "x"), "--only: expected a pattern of some of"),
        (("all", "--seeds", -1), "--seeds: expected an int >= 1, got -1"),
        (("all", "--workers", 0), "--workers: expected an int in [1, 64], got 0"),
    ],
)
def test_mistakes_are_told_in_one_line(here, words, message, capsys):
    assert purecaps("reproduce", *words) == 1
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
