"""Several seeds in turn, each as it would be alone: on a CPU, and networks that note what they saw."""

import json
import time

import pytest
import torch
from tiny import assert_same_state, normalised

from purecaps.errors import ConfigError
from purecaps.models.stack import ModelStack
from purecaps.train import Recipe, RunConfig, make_trainer, train
from purecaps.train.log import Silent, read_metrics
from purecaps.train.loop import InterruptedRunError, OutOfTimeError, Trainer
from purecaps.train.meter import Meter
from purecaps.train.seeds import SeedsInTurn, remove_checkpoints, together
from purecaps.train.start import side_by_side

RECIPE = Recipe(
    steps=12,
    batch_size=16,
    lr=0.01,
    loss="cross_entropy",
    scale=1.0,
    init=None,
    augment=("shift:2",),
    preprocess="standardise",
    val_size=20,
    log_every=2,
    eval_every=6,
    checkpoint_every=4,
)
pytestmark = pytest.mark.usefixtures("tiny_networks")


def config(seed=5, seeds=3, model="normalised", **changes):
    return RunConfig(model, "digits", "x", RECIPE.replace(**changes), seed=seed, seeds=seeds)


class Noting(Silent):
    """Keeps what it is told, and asks a run to stop at a step."""

    def __init__(self, stop_at=None):
        self.told, self.stop_at = [], stop_at

    def start(self, total, done):
        self.told.append(("start", total, done))

    def advance(self, step):
        if step == self.stop_at:
            raise KeyboardInterrupt

    def row(self, row):
        self.told.append(("row", row["step"]))

    def stop(self):
        self.told.append(("stop",))


@pytest.mark.parametrize("change", [{}, {"ema": 0.9}])
def test_each_seed_is_bit_for_bit_the_one_it_is_alone(digits, tmp_path, change):
    run = train(config(**change), digits, tmp_path / "all")
    assert run.side_by_side == 1
    for position, seed in enumerate((5, 6, 7)):
        alone = train(config(seed, 1, **change), digits, tmp_path / str(seed))
        assert_same_state(run.models[position], alone.model)
        assert not run.models[position].training
        for name in ("loss", "error", "val_loss", "val_error"):
            expected = [row[name] for row in alone.history if name in row]
            assert [row[f"{name}/{seed}"] for row in run.history if name in row] == expected


def test_rows_are_those_of_seeds_side_by_side(digits, tmp_path):
    run = train(config(), digits, tmp_path / "turn")
    stacked = train(config(model="cnn_small"), digits, tmp_path / "stack")
    assert [row.keys() for row in run.history] == [row.keys() for row in stacked.history]
    assert [row["step"] for row in run.history] == [2, 4, 6, 8, 10, 12]
    for row in run.history:
        assert row["loss"] == pytest.approx((row["loss/5"] + row["loss/6"] + row["loss/7"]) / 3)
    assert read_metrics(tmp_path / "turn" / "metrics.jsonl") == run.history
    assert run.seconds == pytest.approx(run.history[-1]["seconds"])


def test_a_run_goes_on_in_the_seed_where_it_was_stopped(digits, tmp_path):
    whole = train(config(), digits, tmp_path / "whole")
    watcher = Noting(stop_at=12 + 7)
    with pytest.raises(InterruptedRunError, match="seed 6: stopped"):
        train(config(), digits, tmp_path / "parts", watcher=watcher)
    assert watcher.told[0] == ("start", 36, 0)
    assert watcher.told[-1] == ("stop",)
    assert not (tmp_path / "parts" / "seed-7").exists()
    first = tmp_path / "parts" / "seed-5" / "metrics.jsonl"
    done = first.read_text()
    again = train(config(), digits, tmp_path / "parts", watcher=Noting())
    assert first.read_text() == done
    for left, right in zip(whole.models, again.models, strict=True):
        assert_same_state(left, right)
    assert [row["loss"] for row in again.history] == [row["loss"] for row in whole.history]


def test_a_deadline_in_a_seed_is_told_as_one(digits, tmp_path, monkeypatch):
    monkeypatch.setattr(Meter, "seconds_per_step", 1e3)
    with pytest.raises(OutOfTimeError, match="seed 5: stopped at step 1 of 12"):
        train(config(), digits, tmp_path, deadline=time.monotonic() + 1e3)


def test_a_watcher_sees_all_seeds_as_one_run(digits, tmp_path):
    watcher = Noting()
    train(config(steps=4), digits, tmp_path, watcher=watcher)
    rows = [("row", step) for step in (2, 4, 6, 8, 10, 12)]
    assert watcher.told == [("start", 12, 0), *rows, ("stop",)]


def test_on_a_cpu_several_seeds_are_trained_in_turn(digits, tmp_path):
    assert isinstance(make_trainer(config(model="pcapsnet1", init="caffe"), digits, tmp_path), SeedsInTurn)
    assert isinstance(make_trainer(config(seeds=1), digits, tmp_path), Trainer)
    assert list(tmp_path.iterdir()) == [], "nothing is written before the run"


@pytest.mark.parametrize(
    ("model", "device", "expected"),
    [("cnn_small", "cuda", True), ("cnn_small", "cpu", False), ("normalised", "cuda", False)],
)
def test_seeds_are_side_by_side_on_a_gpu_where_the_network_can_be_stacked(digits, model, device, expected):
    assert side_by_side(config(model=model), digits, torch.device(device)) is expected


@pytest.mark.parametrize("begun_together", [True, False])
def test_a_run_is_gone_on_with_as_it_was_begun_whatever_the_device(digits, tmp_path, monkeypatch, begun_together):
    run, watcher = config(model="cnn_small"), Noting()
    monkeypatch.setattr("purecaps.train.start.side_by_side", lambda *of_run: begun_together)
    whole = train(run, digits, tmp_path)
    for path in tmp_path.rglob("step-00000012.safetensors"):
        path.unlink()
    monkeypatch.setattr("purecaps.train.start.side_by_side", lambda *of_run: not begun_together)
    again = train(run, digits, tmp_path, watcher=watcher)
    assert watcher.told[0][2] == 8, "expected it to go on from the checkpoint"
    assert again.side_by_side == whole.side_by_side
    for left, right in zip(whole.models, again.models, strict=True):
        assert_same_state(left, right)


def test_a_stack_refuses_layers_that_keep_statistics():
    networks = [normalised(in_shape=(1, 28, 28), num_classes=10) for _ in range(2)]
    with pytest.raises(ConfigError, match=r"can be stacked, got BatchNorm2d 'layers.1', which keeps .*train them in"):
        ModelStack(networks)


def test_what_a_run_goes_on_from_can_be_removed(digits, tmp_path):
    train(config(seeds=2, steps=4), digits, tmp_path)
    assert len(list(tmp_path.rglob("step-*.safetensors"))) == 2
    remove_checkpoints(tmp_path)
    assert list(tmp_path.rglob("step-*.safetensors")) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "seed-5", "seed-6"]


def test_rows_that_not_all_seeds_have_are_left_out():
    rows = [[{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}], [{"step": 2, "loss": 4.0, "val_loss": 1.0}]]
    assert together(rows, (0, 1)) == [{"step": 2, "loss": 3.0, "loss/0": 2.0, "loss/1": 4.0}]


def test_a_network_with_statistics_goes_on_exactly(digits, tmp_path):
    one = config(seeds=1, ema=0.9)
    whole = train(one, digits, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-00000012.safetensors").unlink()
    assert_same_state(train(one, digits, tmp_path / "run").model, whole.model)


def test_averaged_weights_come_with_the_statistics_as_they_are(digits, tmp_path):
    plain = train(config(seeds=1), digits, tmp_path / "plain").model
    averaged = train(config(seeds=1, ema=0.9), digits, tmp_path / "averaged").model
    assert not torch.equal(plain.layers[0].weight, averaged.layers[0].weight)
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffer, averaged.get_buffer(name)), f"{name}: expected a copy"
    assert averaged.layers[1].num_batches_tracked == 12


def test_settings_are_refused_before_anything_is_written(digits, tmp_path):
    with pytest.raises(ConfigError, match="--graph: expected a CUDA device"):
        make_trainer(config(), digits, tmp_path, graph=True)
    with pytest.raises(ConfigError, match="val_size: expected fewer than the 160"):
        make_trainer(config(val_size=160), digits, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.parametrize("change", [{}, {"ema": 0.9}])
def test_a_graph_keeps_the_statistics_that_eager_execution_keeps(digits, tmp_path, change):
    runs = {
        graph: train(config(seeds=1, **change), digits, tmp_path / str(graph), device="cuda", graph=graph)
        for graph in (False, True)
    }
    eager, graphed = runs[False].model.state_dict(), runs[True].model.state_dict()
    assert graphed["layers.1.num_batches_tracked"] == 12, "warm-up steps are put back"
    for name, tensor in eager.items():
        torch.testing.assert_close(graphed[name], tensor, rtol=1e-3, atol=1e-4)
    assert runs[True].peak_memory > 0


@pytest.mark.gpu
def test_seeds_in_turn_run_as_graphs(digits, tmp_path):
    run = train(config(), digits, tmp_path, device="cuda", graph=True)
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])["step"] == 12
    assert len(run.models) == 3
