"""What a run says of where it was made, what it cost, and what it leaves behind."""

import json
import os
import re

import pytest
import torch

from purecaps.evaluate.trained import TrainedModel
from purecaps.experiments.run import first_command, run
from purecaps.provenance import commit
from purecaps.train import Recipe, RunConfig


def test_the_commit_is_the_repositorys_unless_the_environment_states_it(monkeypatch):
    monkeypatch.delenv("PURECAPS_COMMIT", raising=False)
    assert re.fullmatch(r"[0-9a-f]{12}|unknown", commit())
    monkeypatch.setenv("PURECAPS_COMMIT", "0123456789ab")
    assert commit() == "0123456789ab"


RECIPE = Recipe(steps=6, batch_size=8, lr=0.01, log_every=2, checkpoint_every=6)


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def test_a_result_says_what_the_run_cost(digits, tmp_path):
    run(RunConfig("pcapsnet1", "digits", "x", RECIPE), digits, str(tmp_path), device="cpu", command="c")
    found = result_of(tmp_path)
    assert (found["parameters"], found["steps"], found["side_by_side"]) == (2952, 6, 1)
    assert 0 < found["seconds_per_step"] < 1
    assert found["peak_memory_bytes"] is None


def test_a_command_whose_path_is_not_utf_8_is_kept(tmp_path):
    command = os.fsdecode(b"purecaps train --data caf\xe9.npz")
    assert first_command(tmp_path, command) == command
    assert (tmp_path / "command.txt").read_bytes() == b"purecaps train --data caf\xe9.npz\n"


@pytest.mark.parametrize("side_by_side", [2, 1])
def test_seeds_leave_the_same_files_side_by_side_and_in_turn(digits, tmp_path, monkeypatch, side_by_side):
    monkeypatch.setattr("purecaps.train.start.side_by_side", lambda config, dataset, device: side_by_side > 1)
    recipe = RECIPE.replace(init=None, loss="cross_entropy", scale=1.0)
    config = RunConfig("cnn_small", "digits", "x", recipe, seed=4, seeds=2)
    outcome = run(config, digits, tmp_path, device=torch.device("cpu"), command="c")
    names = ("report.html", "metrics.jsonl", "config.json", "confusion.png", "worst.png")
    assert all((tmp_path / name).is_file() for name in names)
    found = result_of(tmp_path)
    assert found["seeds"] == [4, 5]
    assert (found["side_by_side"], found["peak_memory_bytes"]) == (side_by_side, None)
    assert found["seconds_per_step"] > 0
    for position, seed in enumerate((4, 5)):
        own = result_of(tmp_path / f"seed-{seed}")
        assert {name: own[name] for name in found["runs"][position]} == found["runs"][position]
        assert own["test_error"] == outcome.errors[position]
        trained = TrainedModel.from_file(tmp_path / f"seed-{seed}")
        expected = outcome.trained.models[position](trained.inputs(digits.test.images))
        torch.testing.assert_close(trained.scores(digits.test.images), expected.detach())


@pytest.mark.gpu
@pytest.mark.parametrize("graph", [False, True])
def test_memory_is_that_of_training_not_of_validation(digits, tmp_path, graph):
    recipe = RECIPE.replace(val_size=100, eval_every=2)
    config = RunConfig("pcapsnet0", "digits", "x", recipe)
    run(config, digits, tmp_path, device=torch.device("cuda"), graph=graph, command="c")
    peak = result_of(tmp_path)["peak_memory_bytes"]
    assert 4 * 170_784 * 4 < peak < 2**30, "weights, gradients and two averages at least"
