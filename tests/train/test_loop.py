"""The training loop: it learns, it can be stopped anywhere, and going on is exact."""

import itertools
import json
import logging
import math
import os
import signal
import time

import pytest
import torch

from purecaps.errors import CheckpointError, PurecapsError
from purecaps.train import Recipe, RunConfig, train
from purecaps.train.checkpoint import checkpoints
from purecaps.train.log import Silent, read_metrics
from purecaps.train.loop import DivergedError, InterruptedRunError, OutOfTimeError
from purecaps.train.meter import Meter

SHORT = Recipe(
    steps=12,
    batch_size=16,
    lr=0.01,
    loss="cross_entropy",
    schedule="cosine",
    augment=("shift:2",),
    ema=0.9,
    val_size=20,
    log_every=2,
    eval_every=6,
    checkpoint_every=4,
)


def config(**changes) -> RunConfig:
    return RunConfig("pcapsnet1", "digits", "default", SHORT.replace(**changes), seed=3)


class StopAt(Silent):
    """Sends a signal to this process once a step is done."""

    def __init__(self, step: int, number: int = signal.SIGINT) -> None:
        self.step, self.number = step, number

    def advance(self, step: int) -> None:
        if step == self.step:
            os.kill(os.getpid(), self.number)


def assert_same_weights(left: torch.nn.Module, right: torch.nn.Module) -> None:
    pairs = zip(left.state_dict().items(), right.state_dict().values(), strict=True)
    for (name, mine), theirs in pairs:
        assert torch.equal(mine, theirs), (
            f"{name}: expected bit for bit the same, got {(mine - theirs).abs().max()} apart"
        )


def test_a_network_learns_to_read_the_digits_it_is_shown(digits, tmp_path):
    recipe = Recipe(
        steps=150, batch_size=32, lr=0.01, loss="cross_entropy", init="caffe", schedule="cosine", log_every=10
    )
    run = train(RunConfig("pcapsnet3", "digits", "x", recipe), digits, tmp_path)
    assert run.history[0]["error"] > 50
    assert run.history[-1]["error"] < 10


def test_a_window_ends_where_time_will_be_up_since_queued_steps_do_not_see_the_clock(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(Meter, "seconds_per_step", 10.0)
    slow = config(log_every=12, eval_every=12, checkpoint_every=12)
    with pytest.raises(OutOfTimeError, match="stopped at step 3 of 12"):
        train(slow, digits, tmp_path, deadline=time.monotonic() + 38)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-00000003.safetensors"]


def test_a_stop_that_was_asked_for_is_told_from_one_for_the_deadline(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(Meter, "seconds_per_step", 10.0)
    with pytest.raises(InterruptedRunError, match="stopped at step 3 of 12") as asked:
        train(config(), digits, tmp_path, deadline=time.monotonic() + 38, watcher=StopAt(3))
    assert not isinstance(asked.value, OutOfTimeError)


def test_metrics_are_written_as_json_lines(digits, tmp_path):
    run = train(config(), digits, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows == run.history
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10, 12]
    assert [row["step"] for row in rows if "val_error" in row] == [6, 12]
    assert all(math.isfinite(value) for row in rows for value in row.values())


def test_validations_and_checkpoints_come_when_asked_for_between_rows_too(digits, tmp_path, monkeypatch):
    from purecaps.train import loop

    saved, save = [], loop.save_checkpoint
    monkeypatch.setattr(
        loop, "save_checkpoint", lambda folder, step, *rest: (saved.append(step), save(folder, step, *rest))
    )
    run = train(config(log_every=8, eval_every=5, checkpoint_every=3), digits, tmp_path / "often")
    assert saved == [3, 6, 9, 12]
    assert [row["step"] for row in run.history if "val_error" in row] == [5, 10, 12]
    assert [row["step"] for row in run.history] == [3, 5, 6, 8, 9, 10, 12]
    usual = train(config(), digits, tmp_path / "usual")
    assert_same_weights(run.model, usual.model)
    lengths = (3, 2, 1, 2, 1, 1, 2)
    mean = sum(row["loss"] * length for row, length in zip(run.history, lengths, strict=True)) / 12
    assert mean == pytest.approx(sum(row["loss"] for row in usual.history) / 6), "a row is of the steps since the last"


@pytest.mark.parametrize("stop", [1, 5, 11])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_goes_on_exactly(digits, tmp_path, stop, number):
    whole = train(config(), digits, tmp_path / "whole")
    with pytest.raises(InterruptedRunError, match=f"stopped at step {stop} of 12"):
        train(config(), digits, tmp_path / "parts", watcher=StopAt(stop, number))
    resumed = train(config(), digits, tmp_path / "parts")
    assert_same_weights(resumed.model, whole.model)
    steps = [row["step"] for row in resumed.history]
    assert steps == sorted(set(steps))
    assert steps[-1] == 12


def test_a_run_that_is_stopped_while_it_tells_of_a_row_is_saved(digits, tmp_path):
    class StopAtRow(Silent):
        def row(self, row):
            if row["step"] == 6:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(InterruptedRunError, match="stopped at step 6 of 12"):
        train(config(), digits, tmp_path, watcher=StopAtRow())
    assert checkpoints(tmp_path / "checkpoints")[0].name == "step-00000006.safetensors"
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [2, 4, 6]


def test_a_run_that_is_stopped_before_its_first_step_can_be_begun_again(digits, tmp_path, monkeypatch):
    from purecaps.train import loop

    make = loop.make_stepper

    def stopped(*of_run, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        return make(*of_run, **options)

    monkeypatch.setattr(loop, "make_stepper", stopped)
    with pytest.raises(InterruptedRunError, match="stopped at step 0 of 12"):
        train(config(), digits, tmp_path)
    assert checkpoints(tmp_path / "checkpoints") == []
    monkeypatch.undo()
    assert train(config(), digits, tmp_path).history[0]["step"] == 2


def test_the_last_two_checkpoints_are_kept(digits, tmp_path):
    train(config(), digits, tmp_path)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == [
        "step-00000012.safetensors",
        "step-00000008.safetensors",
    ]


def damage(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)


def test_a_corrupt_checkpoint_falls_back_to_the_one_before_and_says_so(digits, tmp_path, caplog):
    whole = train(config(), digits, tmp_path / "a")
    train(config(), digits, tmp_path / "b")
    damage(tmp_path / "b" / "checkpoints" / "step-00000012.safetensors")
    with caplog.at_level(logging.WARNING, logger="purecaps.train"):
        again = train(config(), digits, tmp_path / "b")
    assert "step-00000012.safetensors: corrupt" in caplog.text
    assert "going back to step-00000008.safetensors" in caplog.text
    assert_same_weights(again.model, whole.model)


def test_without_a_readable_checkpoint_the_run_is_refused_not_restarted(digits, tmp_path):
    train(config(), digits, tmp_path)
    for path in checkpoints(tmp_path / "checkpoints"):
        damage(path)
    with pytest.raises(CheckpointError, match=r"no checkpoint can be read: .*step-00000012.*step-00000008"):
        train(config(), digits, tmp_path)


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(digits, tmp_path):
    train(config(), digits, tmp_path)
    with pytest.raises(PurecapsError, match=r"got another one: lr is 0.01, not 0.02"):
        train(config(lr=0.02), digits, tmp_path)


def test_rows_later_than_the_checkpoint_are_dropped(digits, tmp_path):
    train(config(), digits, tmp_path)
    (tmp_path / "checkpoints" / "step-00000012.safetensors").unlink()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 14, "lo')
    assert [row["step"] for row in train(config(), digits, tmp_path).history] == [2, 4, 6, 8, 10, 12]
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 6


def test_a_loss_that_is_no_number_stops_the_run_with_the_step_and_the_batch(digits, tmp_path, monkeypatch):
    from purecaps.train import loss as loss_module

    honest, calls = loss_module.loss_of, []

    def poisoned(recipe, scores, labels, step):
        calls.append(1)
        return honest(recipe, scores, labels, step) * (math.nan if len(calls) == 6 else 1)

    monkeypatch.setattr(loss_module, "loss_of", poisoned)
    with pytest.raises(
        DivergedError, match=r"step 5: expected a finite loss, got nan \(batch of training images \d+.*--lr"
    ):
        train(config(), digits, tmp_path)
    assert [path.name for path in checkpoints(tmp_path / "checkpoints")] == ["step-00000004.safetensors"]


def test_averaged_weights_are_what_is_evaluated(digits, tmp_path):
    plain = train(config(ema=0.0), digits, tmp_path / "plain")
    averaged = train(config(ema=0.9), digits, tmp_path / "averaged")
    assert not torch.equal(plain.model.blocks[0].conv.weight, averaged.model.blocks[0].conv.weight)
    assert plain.history[0]["loss"] == averaged.history[0]["loss"], "averaging does not touch training itself"


def test_seeds_differ_in_weights_and_order(digits, tmp_path):
    runs = [
        train(RunConfig("pcapsnet1", "digits", "default", SHORT, seed=seed), digits, tmp_path / str(seed))
        for seed in (0, 1)
    ]
    assert runs[0].history[0]["loss"] != runs[1].history[0]["loss"]


@pytest.mark.parametrize(
    "change",
    [
        {"grad_clip": 0.01},
        {"weight_decay": 0.1},
        {"precision": "bf16"},
        {"loss": "margin"},
        {"preprocess": "standardise"},
    ],
)
def test_every_option_changes_the_run(digits, tmp_path, change):
    usual = train(config(steps=4), digits, tmp_path / "usual").model.blocks[1].conv.weight
    changed = train(config(steps=4, **change), digits, tmp_path / "changed").model.blocks[1].conv.weight
    assert not torch.equal(usual, changed)


def test_a_set_smaller_than_a_batch_can_be_trained_on(digits, tmp_path):
    run = train(config(batch_size=200, steps=2, val_size=0), digits, tmp_path)
    assert len(run.history) == 1


def test_tensorboard_logs_are_written_on_request(digits, tmp_path):
    train(config(steps=4), digits, tmp_path, tensorboard=True)
    assert list((tmp_path / "tensorboard").glob("events.out.tfevents.*"))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["pcapsnet1", "pcapsnet3"])
def test_a_graph_takes_the_same_steps_as_eager_execution(digits, tmp_path, name):
    """As long as rounding has not parted them: Adam's last digits, from the third step on, are 1e-3 after 20 to 40."""
    losses = {}
    for graph in (False, True):
        recipe = SHORT.replace(steps=12, log_every=4, eval_every=8, checkpoint_every=6)
        run = train(
            RunConfig(name, "digits", "default", recipe), digits, tmp_path / str(graph), device="cuda", graph=graph
        )
        losses[graph] = [row["loss"] for row in run.history]
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


@pytest.mark.gpu
def test_a_graph_goes_on_from_a_checkpoint_with_the_same_data_and_rate(digits, tmp_path):
    whole = train(config(), digits, tmp_path / "whole", device="cuda", graph=True)
    with pytest.raises(InterruptedRunError):
        train(config(), digits, tmp_path / "parts", device="cuda", graph=True, watcher=StopAt(5))
    resumed = train(config(), digits, tmp_path / "parts", device="cuda", graph=True)
    assert resumed.history[-1]["lr"] == whole.history[-1]["lr"]
    assert resumed.history[-1]["loss"] == pytest.approx(whole.history[-1]["loss"], rel=1e-3)


@pytest.mark.gpu
def test_a_graph_tells_of_the_same_steps_in_windows_of_any_length(digits, tmp_path):
    means = []
    for change in ({}, {"log_every": 8, "eval_every": 5, "checkpoint_every": 3}):
        run = train(config(**change), digits, tmp_path / str(len(means)), device="cuda", graph=True)
        ends = [0, *(row["step"] for row in run.history)]
        lengths = [end - first for first, end in itertools.pairwise(ends)]
        means.append(sum(row["loss"] * length for row, length in zip(run.history, lengths, strict=True)) / 12)
    assert means[1] == pytest.approx(means[0], rel=1e-3)
