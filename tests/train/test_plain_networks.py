"""Plain networks in the same loop: dropout does not make going on less exact, and several train side by side."""

import pytest
import torch

from purecaps.train import Recipe, RunConfig, train

# A crop to 6x6 keeps the large network quick.
RECIPE = Recipe(
    steps=4,
    batch_size=8,
    lr=0.001,
    loss="cross_entropy",
    scale=1.0,
    init=None,
    augment=("crop:6",),
    log_every=1,
    checkpoint_every=2,
)


def test_a_network_with_dropout_goes_on_exactly(digits, tmp_path):
    config = RunConfig("cnn_baseline", "digits", "cnn", RECIPE)
    whole = train(config, digits, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-00000004.safetensors").unlink()
    torch.manual_seed(99)  # what else is drawn in the process does not matter
    again = train(config, digits, tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True))


def test_several_plain_networks_train_side_by_side_each_with_its_own_dropout(digits, tmp_path):
    run = train(RunConfig("cnn_baseline", "digits", "cnn", RECIPE, seeds=2), digits, tmp_path)
    assert [row["loss/0"] != row["loss/1"] for row in run.history] == [True] * 4


@pytest.mark.parametrize("name", ["lenet", "cnn_small"])
def test_a_plain_network_learns_to_read_the_digits_it_is_shown(digits, tmp_path, name):
    recipe = RECIPE.replace(steps=150, batch_size=32, lr=0.005, augment=(), log_every=10)
    run = train(RunConfig(name, "digits", "cnn", recipe), digits, tmp_path)
    assert run.history[0]["error"] > 40
    assert run.history[-1]["error"] < 10
