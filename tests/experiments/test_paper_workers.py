"""Several processes share jobs: each is run once, what is timed is run alone, and a stop reaches all of them."""

import os
import signal
import sys
from pathlib import Path

import pytest
from paper_cases import training_job, workplace

from purecaps.errors import ConfigError
from purecaps.experiments.paper.job import read
from purecaps.experiments.paper.runner import Tally
from purecaps.experiments.paper.workers import check_workers, merged, run_shared
from purecaps.train.loop import InterruptedRunError

NAMES = [f"table1/job-{letter}" for letter in "abc"]
# A worker as the command line starts it, with the digits for every data set.
WORKER = f"""
import sys, pathlib
sys.path.insert(0, {str(Path(__file__).parent)!r})
from paper_cases import training_job, workplace
from purecaps import data
from purecaps.experiments.paper.workers import work_on
folder, digits, file = map(pathlib.Path, sys.argv[1:])
place = workplace(folder, data.load(str(digits)), say=lambda text: print(text, flush=True))
work_on(file, [training_job(name) for name in {NAMES}], place)
"""


def script(code: str, *words: object) -> list[str]:
    return [sys.executable, "-c", code, *map(str, words)]


def test_processes_share_the_jobs_and_what_is_timed_comes_after_them_alone(digits, digits_file, tmp_path):
    said: list[str] = []
    place = workplace(tmp_path, digits, say=said.append)
    jobs = [training_job("table1/timed", timed=True), *map(training_job, NAMES)]
    tally = run_shared(jobs, place, 2, script(WORKER, tmp_path, digits_file))
    assert (sorted(tally.done), tally.failed) == ([*NAMES, "table1/timed"], {})
    begun = [line for line in said if "pcapsnet1, some" in line]
    assert sorted(line.split("] ")[1].split(":")[0] for line in begun) == [*NAMES, "table1/timed"], "each once"
    assert all(line.startswith(("1: [", "2: [")) for line in begun[:-1])
    assert begun[-1].startswith("[1/1] table1/timed")
    for name in NAMES:
        record = read(place.results, name)
        assert record is not None
        assert [run["seed"] for run in record["runs"]] == [0, 1]
        assert [part["beside_others"] for part in record["parts"]] == [True], "its times are too long"
    alone = read(place.results, "table1/timed")
    assert alone is not None
    assert "beside_others" not in alone["parts"][0]
    assert not place.shared

    # A command that would fail shows that nothing is started for what is done.
    again = run_shared(jobs, place, 2, script("raise SystemExit(3)"))
    assert (sorted(again.done), again.failed) == ([*NAMES, "table1/timed"], {})


def test_a_process_that_breaks_is_named_and_its_jobs_are_not_done(digits, tmp_path):
    tally = run_shared(list(map(training_job, NAMES)), workplace(tmp_path, digits), 2, script("raise SystemExit(9)"))
    assert tally.failed == {f"worker {number}": "ended with exit code 9" for number in (1, 2)}
    assert (tally.done, tally.unfinished) == ([], NAMES)


def test_what_a_process_recorded_before_it_broke_is_done(digits, digits_file, tmp_path):
    begin, end = WORKER.split("work_on(file, ")
    speechless = f"{begin}from purecaps.experiments.paper.runner import run_jobs; run_jobs({end}raise SystemExit(9)"
    place = workplace(tmp_path, digits)
    tally = run_shared(list(map(training_job, NAMES)), place, 2, script(speechless, tmp_path, digits_file))
    assert sorted(tally.done) == NAMES
    assert tally.failed == {f"worker {number}": "ended with exit code 9" for number in (1, 2)}


def test_a_stop_is_handed_on_to_every_process_once(digits, tmp_path):
    """As Ctrl-C is: a second one would stop a training before it has saved."""
    code = """
import pathlib, signal, sys, time
came = []
signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
print("ready", flush=True)
while not came:
    time.sleep(0.01)
time.sleep(0.3)
pathlib.Path(sys.argv[1], pathlib.Path(sys.argv[2]).name).write_text(str(len(came)))
"""
    ready = []

    def say(text: str) -> None:
        ready.append(text)
        if len(ready) == 2:
            os.kill(os.getpid(), signal.SIGINT)

    place = workplace(tmp_path, digits, say=say)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(InterruptedRunError, match="stopped"):
        run_shared(list(map(training_job, NAMES)), place, 2, script(code, tmp_path))
    assert sorted(ready) == ["1: ready", "2: ready"]
    assert [(tmp_path / f"{number}.json").read_text() for number in (1, 2)] == ["1", "1"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_job_is_what_the_luckiest_process_says():
    one = Tally(done=["a"], elsewhere=["b", "e"], failed={"c": "no luck"}, impossible={"d": "no GPU"}, unfinished=["f"])
    two = Tally(done=["b"], elsewhere=["a", "c", "e", "f"], impossible={"d": "no GPU"})
    assert merged("abcdef", [one, two]) == Tally(
        done=["a", "b"], failed={"c": "no luck"}, impossible={"d": "no GPU"}, elsewhere=["e"], unfinished=["f"]
    )
    assert merged("e", [one, two, None]).unfinished == ["e"], "the one that broke was at it"


@pytest.mark.parametrize("count", [0, -2, 65])
def test_a_number_of_processes_that_makes_no_sense_is_refused(count):
    with pytest.raises(ConfigError, match=rf"--workers: expected an int in \[1, 64\], got {count}"):
        check_workers(count)
