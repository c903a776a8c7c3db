"""Jobs run once, go on where they were, and never lose what was finished."""

import dataclasses
import json
import math
import signal
import time

import pytest
import torch
from filelock import FileLock
from paper_cases import RECIPE, training_job, workplace

from purecaps.errors import ConfigError, DataError
from purecaps.evaluate.trained import TrainedModel
from purecaps.experiments.paper import ENTRIES
from purecaps.experiments.paper.job import differences, path_of, read
from purecaps.experiments.paper.runner import LEAST_SECONDS, run_jobs, select, usable
from purecaps.experiments.paper.scale import FULL
from purecaps.experiments.paper.timing import TimingJob
from purecaps.train.log import Silent
from purecaps.train.loop import InterruptedRunError
from purecaps.train.meter import Meter


class ForbiddenError(Exception):
    pass


def forbidden(name):
    raise ForbiddenError("a data set was loaded: something is being run again")


def run(job, place):
    tally = run_jobs([job], place)
    assert tally.done == [job.name], tally
    return read(place.results, job.name)


def test_a_record_has_every_seed_and_all_it_was_made_of(digits, tmp_path):
    job = training_job(recipe=RECIPE.replace(val_size=20))
    record = run(job, workplace(tmp_path, digits))
    assert [each["seed"] for each in record["runs"]] == [0, 1]
    for each in record["runs"]:
        assert each["test_error"] == pytest.approx(100 * each["test_errors"] / 40)
        assert {"test_error_interval", "train_error", "val_error"} <= each.keys()
    assert record["what"]["recipe"]["lr"] == 0.01
    assert record["parts"][0]["seeds"] == [0, 1]
    assert record["parts"][0]["command"] == "purecaps reproduce table1 --only some-job --scale tiny --seeds 2"
    assert record["parts"][0]["parameters"] == 2952


@pytest.mark.parametrize(("batch", "looked_at"), [(20, 40), (1000, None)])
def test_the_training_error_of_what_is_evaluated_slowly_is_that_of_some_images(
    digits, tmp_path, monkeypatch, batch, looked_at
):
    monkeypatch.setattr("purecaps.experiments.paper.training.TRAIN_IMAGES", 50)
    monkeypatch.setattr("purecaps.experiments.paper.training.eval_batch", lambda network: batch)
    place, job = workplace(tmp_path, digits), training_job(seeds=1)
    assert run_jobs([job], place).done == [job.name]
    (found,) = read(place.results, job.name)["runs"]
    assert found.get("train_images") == looked_at
    assert found["test_images"] == 40
    assert 0 <= found["train_error"] <= 100


def test_the_recorded_error_is_that_of_the_weights_left_behind(digits, tmp_path):
    job, place = training_job(), workplace(tmp_path, digits)
    record = run(job, place)
    for each in record["runs"]:
        trained = TrainedModel.from_file(job.weights(place, each["seed"]))
        wrong = (trained.scores(digits.test.images).argmax(dim=1) != digits.test.labels).sum()
        assert int(wrong) == each["test_errors"]
    assert job.weights(place, 2) is None


def test_what_is_done_is_not_run_again(digits, tmp_path):
    job, place = training_job(), workplace(tmp_path, digits)
    run(job, place)
    before = path_of(place.results, job.name).read_bytes()
    place = workplace(tmp_path, digits)
    place.load = forbidden
    run(job, place)
    run(job.with_seeds(1), place)
    assert path_of(place.results, job.name).read_bytes() == before


def test_more_seeds_are_added_to_those_that_are_there(digits, tmp_path):
    job, place = training_job(seeds=2), workplace(tmp_path, digits)
    first = run(job, place)
    more = run(job.with_seeds(3), place)
    assert more["runs"][:2] == first["runs"]
    assert [part["seeds"] for part in more["parts"]] == [[0, 1], [2]]
    alone = run(training_job("table1/alone", seeds=3), place)
    errors = [each["test_error"] for each in more["runs"]]
    assert errors == [each["test_error"] for each in alone["runs"]]
    assert more["test_error_mean"] == pytest.approx(sum(errors) / 3)


def test_another_recipe_is_run_anew_and_said_to_be(digits, tmp_path):
    said = []
    job, place = training_job(), workplace(tmp_path, digits, say=said.append)
    run(job, place)
    changed = dataclasses.replace(job, recipe=RECIPE.replace(lr=0.02))
    assert usable(changed, place)[0] == "changed"
    record = run(changed, place)
    assert record["what"]["recipe"]["lr"] == 0.02
    assert any("run anew: recipe.lr was 0.01, is 0.02" in text for text in said)


def test_an_option_that_a_record_does_not_know_counts_as_its_default(digits, tmp_path):
    job, place = training_job(), workplace(tmp_path, digits)
    record = run(job, place)
    del record["what"]["recipe"]["adversary_steps"]
    assert differences(job, record) == []
    del record["what"]["recipe"]["loss"]  # whose default is another
    assert differences(job, record) == ['recipe.loss was "margin", is "cross_entropy"']


def test_a_job_trains_its_teacher_and_names_it(digits, tmp_path):
    teacher = training_job("table1/teacher", model="cnn_small", recipe=RECIPE.replace(init=None, val_size=20), seeds=1)
    taught = RECIPE.replace(teacher_share=0.5, val_size=20)
    job, place = training_job(recipe=taught, teacher=teacher), workplace(tmp_path, digits)
    record = run(job, place)
    about = record["parts"][0]["teacher"]
    wrong = TrainedModel.from_file(teacher.weights(place, 0)).scores(digits.test.images).argmax(1) != digits.test.labels
    assert (about["job"], about["seed"]) == ("table1/teacher", 0)
    assert about["test_error"] == pytest.approx(100 * wrong.float().mean().item())
    assert 0 <= about["val_error"] <= 100
    assert TrainedModel.from_file(job.weights(place, 1)).info.record["teacher"] == about
    assert read(place.results, "table1/teacher") is None, "its own record is its own job's to make"


def test_another_recipe_of_the_teacher_makes_a_record_void(digits, tmp_path):
    plain = training_job("table1/teacher", model="cnn_small", recipe=RECIPE.replace(init=None), seeds=1)
    job = training_job(recipe=RECIPE.replace(teacher_share=0.5), teacher=plain, seeds=1)
    record = run(job, workplace(tmp_path, digits))
    other = dataclasses.replace(job, teacher=dataclasses.replace(plain, recipe=plain.recipe.replace(lr=0.02)))
    assert differences(other, record) == ["teacher.recipe.lr was 0.01, is 0.02"]
    del record["what"]["teacher"]["recipe"]["mixup"]
    assert differences(job, record) == []
    assert "teacher" not in plain.what(), "records of before there were teachers stay as they are"


def test_asking_the_teacher_takes_time():
    teacher = training_job("table1/teacher", model="resnet", seeds=1)
    alone, taught = training_job(model="pcapsnet4"), training_job(model="pcapsnet4", teacher=teacher)
    assert taught.seconds_left(None) - alone.seconds_left(None) == pytest.approx(2 * RECIPE.steps * 0.5e-3)


class StopsAt(Silent):
    """A watcher in whose hands the time runs out, or somebody presses Ctrl-C."""

    def __init__(self, step, act):
        self.step, self.act, self.started_at = step, act, None

    def start(self, total, done):
        self.started_at = done

    def advance(self, step):
        if step == self.step:
            self.act()


def test_the_deadline_stops_a_training_which_then_goes_on_to_the_same_end(digits, tmp_path, monkeypatch):
    job = training_job()
    expected = run(job, workplace(tmp_path / "whole", digits))
    place = workplace(tmp_path / "parts", digits, deadline=time.monotonic() + 10 * LEAST_SECONDS)
    with monkeypatch.context() as patched:
        late = place.deadline + 1
        place.watcher = lambda: StopsAt(3, lambda: patched.setattr(time, "monotonic", lambda: late))
        tally = run_jobs([job], place)
    assert tally.unfinished == [job.name]
    assert read(place.results, job.name) is None
    second = StopsAt(-1, lambda: None)
    place.watcher = lambda: second
    record = run(job, place)
    assert second.started_at == 3, "the second sitting begins where the first one stopped"
    assert record["runs"] == expected["runs"]
    assert not list(place.work.rglob("step-*.safetensors")), "checkpoints of what is done are removed"


def test_a_deadline_that_training_foresees_leaves_a_job_unfinished(digits, tmp_path, monkeypatch):
    """Its steps end before the deadline, so that the clock alone does not tell it from Ctrl-C."""
    said: list[str] = []
    job, other = training_job(), training_job("table1/other")
    place = workplace(tmp_path, digits, deadline=time.monotonic() + 10 * LEAST_SECONDS, say=said.append)
    with monkeypatch.context() as patched:
        patched.setattr(Meter, "seconds_per_step", 9 * LEAST_SECONDS)
        tally = run_jobs([job, other], place)
    assert (tally.done, tally.unfinished, tally.failed) == ([], [job.name, other.name], {})
    assert said[1].endswith("stopped at step 1 of 6")
    assert not place.overdue
    place.deadline = math.inf
    assert len(run(job, place)["runs"]) == 2


def test_waiting_for_what_another_process_trains_ends_at_the_deadline(digits, tmp_path, monkeypatch):
    monkeypatch.setattr("purecaps.experiments.paper.runner.LEAST_SECONDS", 0.0)
    teacher = training_job("table1/teacher", model="cnn_small", recipe=RECIPE.replace(init=None), seeds=1)
    job = training_job(recipe=RECIPE.replace(teacher_share=0.5), teacher=teacher)
    place = workplace(tmp_path, digits, deadline=time.monotonic() + 0.3)
    lock = place.work / "table1" / "teacher.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        tally = run_jobs([job], place)
    assert (tally.unfinished, tally.elsewhere, tally.failed) == ([job.name], [], {})


def test_nothing_is_begun_just_before_the_deadline(digits, tmp_path):
    jobs = [training_job("table1/one"), training_job("table1/two")]
    place = workplace(tmp_path, digits)
    run(jobs[0], place)
    place.deadline, place.load = time.monotonic() + LEAST_SECONDS / 2, forbidden
    tally = run_jobs(jobs, place)
    assert (tally.done, tally.unfinished) == (["table1/one"], ["table1/two"])


def test_ctrl_c_ends_it_and_the_next_time_goes_on(digits, tmp_path):
    job, place = training_job(), workplace(tmp_path, digits)
    place.watcher = lambda: StopsAt(2, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(InterruptedRunError, match="stopped at step 2 of 6"):
        run_jobs([job, training_job("table1/other")], place)
    assert read(place.results, job.name) is None
    watcher = StopsAt(-1, lambda: None)
    place.watcher = lambda: watcher
    run(job, place)
    assert watcher.started_at == 2


def test_one_failing_job_does_not_keep_the_others(digits, tmp_path):
    broken = training_job("table1/broken", recipe=RECIPE.replace(lr=3e38, loss="margin"))
    tally = run_jobs([broken, training_job()], workplace(tmp_path, digits))
    assert tally.done == ["table1/some-job"]
    assert "expected a finite loss, got" in tally.failed["table1/broken"]


def test_whatever_a_driver_throws_at_one_job_the_others_run(digits, tmp_path, monkeypatch):
    broken, place = training_job("table1/broken"), workplace(tmp_path, digits)
    real = type(broken).run

    def breaks(self, place, record):
        if self.name == broken.name:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore of it")
        real(self, place, record)

    monkeypatch.setattr(type(broken), "run", breaks)
    tally = run_jobs([broken, training_job()], place)
    assert tally.done == ["table1/some-job"]
    assert tally.failed == {
        "table1/broken": "RuntimeError: CUDA error: operation not permitted when stream is capturing"
    }


def test_each_job_begins_with_torch_compile_as_new(digits, tmp_path, monkeypatch):
    import torch._dynamo

    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(1))
    run_jobs([training_job("table1/one"), training_job("table1/two")], workplace(tmp_path, digits))
    assert len(resets) == 2


def test_a_job_that_another_process_is_at_is_left_to_it(digits, tmp_path):
    job, place = training_job(), workplace(tmp_path, digits)
    lock = place.work / "table1" / "some-job.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock):
        tally = run_jobs([job], place)
    assert (tally.elsewhere, tally.done) == ([job.name], [])
    run(job, place)


def test_results_of_another_scale_are_never_replaced(digits, tmp_path):
    job, place = training_job(), workplace(tmp_path, digits)
    run(job, place)
    full = dataclasses.replace(job, scale="full")
    with pytest.raises(
        ConfigError, match=r"--out: expected a folder for results of scale full, got .* is of scale tiny"
    ):
        run_jobs([training_job("table1/first"), full], place)
    assert read(place.results, "table1/first") is None, "nothing may run before the refusal"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"some-job.json: expected the record of a job as JSON, got"),
        ("[]", "expected the record of a job, got something"),
    ],
)
def test_a_broken_record_is_an_error_not_a_reason_to_run_again(digits, tmp_path, text, message):
    job, place = training_job(), workplace(tmp_path, digits)
    path_of(place.results, job.name).parent.mkdir(parents=True)
    path_of(place.results, job.name).write_text(text)
    with pytest.raises(DataError, match=message):
        run_jobs([job], place)


def test_averaging_is_recorded_beside_the_plain_error(digits, tmp_path):
    recipe = RECIPE.replace(augment=("crop:24",), preprocess="gcn_zca")
    job = training_job(model="pcapsnet4", recipe=recipe, averaging=True)
    record = run(job, workplace(tmp_path, digits))
    assert all(each["averaged"].keys() == {"mirrored too", "18 views"} for each in record["runs"])


def test_a_timing_has_as_many_numbers_as_were_asked_for(digits, tmp_path):
    job = TimingJob("table5/x", "tiny", "pcapsnet1", "mnist", RECIPE, "cpu", (3, 7), iterations=2, windows=3)
    record = run(job, workplace(tmp_path, digits))
    assert [each["batch"] for each in record["runs"]] == [3, 7]
    assert all(len(each["seconds"]) == 3 and min(each["seconds"]) > 0 for each in record["runs"])
    assert "thread" in record["parts"][0]["versions"]["hardware"]
    on_gpu = dataclasses.replace(job, device_type="cuda")
    assert on_gpu.obstacle(torch.device("cpu")) == "it needs a CUDA device, got cpu"


def test_jobs_are_selected_by_pattern():
    entries = [ENTRIES["table1"]]
    assert [job.leaf for job in select(entries, FULL, only="pcapsnet0-*")] == [
        "pcapsnet0-paper", "pcapsnet0-authors", "pcapsnet0-best",
    ]  # fmt: skip
    assert [job.name for job in select(entries, FULL, only="table1/*3-best", seeds=4)] == ["table1/pcapsnet3-best"]
    assert select(entries, FULL, only="table1/*3-best", seeds=4)[0].seeds == 4
    with pytest.raises(
        ConfigError, match=r"--only: expected a pattern of some of table1/pcapsnet0-paper, .*, got 'x\*'"
    ):
        select(entries, FULL, only="x*")
    with pytest.raises(ConfigError, match="--seeds: expected an int >= 1, got 0"):
        select(entries, FULL, seeds=0)


def test_a_record_is_plain_json_of_a_few_kilobytes(digits, tmp_path):
    job, place = training_job(), workplace(tmp_path, digits)
    run(job, place)
    text = path_of(place.results, job.name).read_text()
    assert len(text) < 10_000
    assert json.loads(text)["job"] == job.name


@pytest.mark.parametrize(("device", "compiled"), [("cuda", True), ("cpu", False)])
def test_a_job_is_compiled_where_it_says_so_and_only_on_a_gpu(device, compiled, tmp_path, digits, monkeypatch):
    asked = []

    def stop(*args, **options):
        asked.append((options["device"].type, options["compile"]))
        raise InterruptedError

    monkeypatch.setattr("purecaps.experiments.paper.training.make_trainer", stop)
    place = workplace(tmp_path, digits)
    place.device = torch.device(device)
    for job in (training_job(compiled=True), training_job()):
        with pytest.raises(InterruptedError):
            job.run(place, None)
    assert asked == [(device, compiled), (device, False)]
