"""Steps timed apart: each alone, none lost, and the zoo's table takes them where trainings shared a device."""

import dataclasses
import json
import os
import sys
import time

import pytest
import torch
from paper_cases import RECIPE, training_job, workplace

from purecaps.experiments.paper import step_sitting, zoo
from purecaps.experiments.paper.contenders import cost_of
from purecaps.experiments.paper.job import UnfinishedError, read
from purecaps.experiments.paper.runner import run_jobs, usable
from purecaps.experiments.paper.scale import FULL, TINY
from purecaps.experiments.paper.step_sitting import Task, run_sitting
from purecaps.experiments.paper.steps import StepsJob, settings_of
from purecaps.experiments.paper.systems import SYSTEMS

# Stands for a network: "slow" counts for ever while it gets ready, the others are ready at once.
PROCESS = """
import json, pathlib, sys, time
file = pathlib.Path(sys.argv[1])
kind = json.loads(file.read_text())["kind"]
beat = file.parent.parent / "beat"
while kind == "slow":
    file.with_suffix(".beat").write_text(str(time.monotonic()))
    file.with_suffix(".beat").rename(beat)
    time.sleep(0.01)
if kind == "broken":
    sys.exit("ValueError: no such network\\nsome advice")
if kind == "large" and file.stem == "1":
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 9 GiB")
now = time.monotonic()
file.with_suffix(".part").write_text(json.dumps([now - 2, now]))
file.with_suffix(".part").rename(file.with_suffix(".ready"))
while not file.with_suffix(".go").exists():
    time.sleep(0.01)
begun = time.monotonic()
time.sleep(0.6)
last = float(beat.read_text()) if beat.exists() else 0
file.with_suffix(".part").write_text(json.dumps({"ms": 1.0, "beats": last > begun + 0.3}))
file.with_suffix(".part").rename(file.with_suffix(".found"))
"""


@pytest.fixture
def sit(monkeypatch, tmp_path):
    monkeypatch.setattr(step_sitting, "command", lambda file: [sys.executable, "-c", PROCESS, str(file)])
    monkeypatch.setattr(step_sitting.tempfile, "tempdir", str(tmp_path))

    def run(*kinds, workers=2, seconds=20.0):
        found = []
        tasks = [task(kind) for kind in kinds]
        run_sitting(
            tasks, time.monotonic() + seconds, lambda each, what: found.append((each.name, what)), workers=workers
        )
        return found

    return run


def task(kind, *, compiled=False, ms=1.0, steps=10):
    return Task(kind, {"kind": kind, "compiled": compiled, "recipe": {"steps": steps}}, ms)


def test_one_that_is_ready_is_timed_while_another_that_is_not_stands_still(sit, tmp_path):
    begun = time.monotonic()
    ((name, found),) = sit("slow", "quick", seconds=4.0)
    assert (name, found["ms"], found["beats"]) == ("quick", 1.0, False)
    assert found["ready_s"] == pytest.approx(2.0, abs=0.2)
    assert float((tmp_path / "beat").read_text()) > begun + 3, "it went on afterwards, until time was up"
    assert time.monotonic() - begun < 8


def test_a_network_that_breaks_or_is_never_ready_says_why_and_costs_no_other_its_row(sit, monkeypatch):
    monkeypatch.setattr(step_sitting, "READY_SECONDS", 2.0)
    found = dict(sit("broken", "slow", "quick"))
    assert found["broken"] == {"why": "ValueError: no such network"}
    assert found["slow"] == {"why": "was not ready in 2 s"}
    assert found["quick"]["ms"] == 1.0


def test_what_found_no_memory_beside_others_is_tried_again(sit):
    assert [(name, found.get("ms")) for name, found in sit("large", "quick", workers=1)] == [
        ("quick", 1.0),
        ("large", 1.0),
    ]


def test_those_not_compiled_come_first_and_then_the_longest_training(tmp_path):
    waiting = [task("a", compiled=True), task("b", compiled=True, ms=5.0), task("b", ms=5.0), task("a")]
    sitting = step_sitting._Sitting(tmp_path, 0.0, 2, waiting, lambda *given: None)
    order = [(each.name, each.compiled) for each in (sitting._next() for _ in range(4))]
    assert order == [("b", False), ("a", False), ("b", True), ("a", True)]
    sitting.waiting = [task("a", compiled=True), task("b", compiled=True, ms=5.0)]
    sitting.measured = {"a": 9.0}
    assert sitting._next().name == "a", "what was measured counts, not what was expected"


def job_of(*trainings, **options):
    return StepsJob("zoo/steps", "tiny", trainings, **options)


def test_a_step_is_timed_by_a_process_of_its_own_and_only_what_is_missing_is_timed_again(digits, tmp_path):
    place = workplace(tmp_path, digits)
    first = training_job("zoo/first", images=40)
    assert run_jobs([job_of(first)], place).done == ["zoo/steps"]
    record = read(place.results, "zoo/steps")
    (row,) = record["runs"]
    assert (row["job"], row["compiled"], row["networks"], row["batch"]) == ("zoo/first", False, 1, 8)
    assert row["ms"] > 0
    assert row["hardware"] == record["parts"][0]["versions"]["hardware"]
    assert row["of"] == settings_of(first.what())
    assert "steps" not in row["of"]["recipe"]

    more = job_of(first, training_job("zoo/second", model="lenet", recipe=RECIPE.replace(init=None), images=40))
    assert usable(more, place)[0] == "part"
    assert run_jobs([more], place).done == ["zoo/steps"]
    again = read(place.results, "zoo/steps")
    assert again["runs"][0] == row
    assert [each["job"] for each in again["runs"]] == ["zoo/first", "zoo/second"]
    assert len(again["parts"]) == 2


def test_steps_and_what_a_run_is_watched_by_do_not_make_a_row_void_and_other_settings_do():
    job = training_job("zoo/first")
    row = {"job": job.name, "compiled": False, "of": settings_of(job.what())}
    longer = dataclasses.replace(job, recipe=RECIPE.replace(steps=500, checkpoint_every=50, log_every=50))
    assert job_of(longer).is_done({"runs": [row]})
    for changed in (RECIPE.replace(batch_size=16), RECIPE.replace(precision="tf32"), RECIPE.replace(augment=("flip",))):
        assert not job_of(dataclasses.replace(job, recipe=changed)).is_done({"runs": [row]})
    assert not job_of(job, both_ways=frozenset({job.name})).is_done({"runs": [row]})
    assert job_of(job).is_done({"runs": [row | {"why": "was not ready in 240 s"}]}), "it would be tried for ever"


def test_what_time_does_not_suffice_for_is_left_and_said_to_be(digits, tmp_path):
    job, place = job_of(training_job("zoo/first", images=40)), workplace(tmp_path, digits, deadline=time.monotonic())
    with pytest.raises(UnfinishedError, match="zoo/steps: 1 of 1 steps are left to time"):
        job.run(place, None)
    assert read(place.results, "zoo/steps") is None


def test_on_a_cpu_nothing_is_timed_at_full_scale():
    (job,) = (job for job in zoo.plan(FULL) if job.name == "zoo/steps")
    assert job.obstacle(torch.device("cpu")) == "it needs a CUDA device, got cpu"
    assert job.obstacle(torch.device("cuda")) is None
    assert job.both_ways == {each.name for each in SYSTEMS}
    assert job.both_ways < {each.name for each in job.trainings}, "the paper's networks are timed, too"
    (tiny,) = (job for job in zoo.plan(TINY) if job.name == "zoo/steps")
    assert tiny.obstacle(torch.device("cpu")) is None
    assert [each.model for each in tiny.trainings] == ["lenet"]


def test_trainings_of_the_zoo_may_share_a_device_and_their_steps_are_timed_alone():
    assert [job.name for job in zoo.plan(FULL) if job.timed] == ["zoo/steps"]


GPU = "NVIDIA H200"
WHAT = {"model": "dcnet", "data": "mnist", "recipe": {"steps": 1000, "precision": "tf32"}}
ROW = {
    "job": "zoo/a", "compiled": False, "networks": 1, "batch": 128, "ms": 2.0, "spread_ms": 0.1,
    "peak_memory_bytes": 500, "ready_s": 9.0, "hardware": GPU, "of": settings_of(WHAT),
}  # fmt: skip


def cost(row, **part):
    alone = {"seeds": [0], "train_seconds": 9.0, "seconds_per_step": 0.009, "peak_memory_bytes": 700}
    alone |= {"side_by_side": 1, "versions": {"hardware": GPU}}
    return cost_of({"job": "zoo/a", "what": WHAT, "parts": [alone | part]}, GPU, {"runs": [row]})


def test_a_training_that_shared_its_device_has_the_time_and_memory_that_were_measured_alone():
    found = cost(ROW, beside_others=True)
    assert (found.ms, found.seconds, found.memory, found.apart, found.memory_apart) == (2.0, 2.0, 500, True, True)
    shared = cost(ROW | {"networks": 10}, beside_others=True)
    assert (shared.ms, shared.seconds, shared.memory, shared.at_once) == (0.2, 0.2, 50, 10)


def test_a_training_that_ran_alone_keeps_its_own_time():
    found = cost(ROW)
    assert (found.ms, found.seconds, found.memory, found.apart, found.memory_apart) == (9.0, 9.0, 700, False, False)
    older = cost(ROW, peak_memory_bytes=None)
    assert (older.ms, older.memory, older.apart, older.memory_apart) == (9.0, 500, False, True)


@pytest.mark.parametrize(
    ("row", "part"),
    [
        ({"hardware": "NVIDIA A100"}, {}),
        ({"compiled": True}, {}),
        ({}, {"compiled": True}),
        ({"of": settings_of(WHAT | {"recipe": {"precision": "bf16"}})}, {}),
        ({"job": "zoo/b"}, {}),
        ({"why": "out of memory"}, {}),
    ],
    ids=["hardware", "row compiled", "training compiled", "precision", "another network", "not timed"],
)
def test_what_was_measured_of_something_else_is_left_out(row, part):
    assert cost(ROW | row, beside_others=True, **part) is None


def test_a_process_ends_with_whoever_started_it(tmp_path, monkeypatch):
    from purecaps.experiments.paper import step_process

    parents = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(parents))
    with pytest.raises(SystemExit, match="whoever started this is gone"):
        step_process.await_turn(tmp_path / "go")


def test_random_images_are_as_many_as_the_data_set_has():
    from purecaps.experiments.paper.step_process import random_images

    train, test = random_images("mnist", None)
    assert (len(train), len(test), tuple(train.images.shape[1:])) == (60_000, 10_000, (1, 28, 28))
    assert tuple(random_images("cifar10", 3).train.images.shape) == (3, 3, 32, 32)
    assert json.dumps(settings_of(WHAT)["recipe"]) == '{"precision": "tf32"}'
