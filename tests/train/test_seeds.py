"""Several seeds side by side: each network is the one it would have been alone."""

import pytest
import torch

from purecaps.errors import ConfigError
from purecaps.models import create_model
from purecaps.models.stack import ModelStack
from purecaps.train import Recipe, RunConfig, Trainer, train

RECIPE = Recipe(
    steps=20,
    batch_size=16,
    lr=0.01,
    loss="cross_entropy",
    augment=("affine:degrees=7,scale=0.07,shear=0.05,shift=1.5", "flip", "cutout:5"),
    preprocess="standardise",
    ema=0.9,
    val_size=20,
    log_every=1,
    eval_every=10,
    checkpoint_every=5,
)


@pytest.mark.parametrize("change", [{}, {"loss": "margin", "grad_clip": 0.01}, {"batch_size": 200}])
def test_each_seed_takes_the_steps_it_takes_alone(digits, tmp_path, change):
    recipe = RECIPE.replace(**change)
    together = Trainer(RunConfig("pcapsnet1", "digits", "x", recipe, seed=5, seeds=3), digits, tmp_path / "all").run()
    for position, seed in enumerate((5, 6, 7)):
        alone = train(RunConfig("pcapsnet1", "digits", "x", recipe, seed=seed), digits, tmp_path / str(seed))
        losses, expected = [row[f"loss/{seed}"] for row in together.history], [row["loss"] for row in alone.history]
        assert losses[:5] == pytest.approx(expected[:5], rel=1e-5)
        assert losses == pytest.approx(expected, rel=1e-2), "rounding is amplified from step to step, but slowly"
        images = digits.test.images / 255
        torch.testing.assert_close(together.models[position](images), alone.model(images), rtol=3e-2, atol=3e-2)


def test_rows_hold_the_mean_and_each_seeds_own(digits, tmp_path):
    run = Trainer(RunConfig("pcapsnet1", "digits", "x", RECIPE, seeds=2), digits, tmp_path).run()
    for row in run.history:
        assert row["loss"] == pytest.approx((row["loss/0"] + row["loss/1"]) / 2)
    assert {"val_error", "val_error/0", "val_error/1"} <= run.history[-1].keys()


def test_a_stack_goes_on_exactly(digits, tmp_path):
    config = RunConfig("pcapsnet1", "digits", "x", RECIPE, seeds=2)
    whole = Trainer(config, digits, tmp_path / "whole").run()
    Trainer(config, digits, tmp_path / "parts").run()
    for path in (tmp_path / "parts" / "checkpoints").glob("*20.safetensors"):
        path.unlink()
    again = Trainer(config, digits, tmp_path / "parts").run()
    for left, right in zip(whole.models, again.models, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(left.parameters(), right.parameters(), strict=True))


def test_a_stack_gives_back_the_networks_it_was_made_of():
    networks = [create_model("pcapsnet2", mean=(0.1,), std=(0.3,)) for _ in range(3)]
    stack = ModelStack(networks)
    images = torch.rand(3, 5, 1, 28, 28)
    expected = torch.stack([network(batch) for network, batch in zip(networks, images, strict=True)])
    torch.testing.assert_close(stack(images), expected)
    for before, after in zip(networks, stack.unstack(), strict=True):
        assert before.state_dict().keys() == after.state_dict().keys()
        assert all(torch.equal(a, b) for a, b in zip(before.parameters(), after.parameters(), strict=True))


def test_moving_a_stack_moves_its_buffers_too():
    stack = ModelStack([create_model("pcapsnet1", mean=(0.1,)) for _ in range(2)]).double()
    assert stack(torch.rand(2, 3, 1, 28, 28, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelStack([]), "models: expected at least one network, got none"),
        (
            lambda: ModelStack([create_model("pcapsnet1")])(torch.rand(2, 3, 1, 28, 28)),
            r"images: expected \[1, B, C, H, W\], got \[2, 3",
        ),
        (lambda: RunConfig("pcapsnet1", "mnist", "x", seeds=0), r"seeds: expected an int in \[1, 1000\], got 0"),
    ],
)
def test_wrong_arguments_are_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.gpu
def test_a_stack_runs_as_a_graph(digits, tmp_path):
    recipe = RECIPE.replace(steps=100, log_every=5)
    together = train(
        RunConfig("pcapsnet1", "digits", "x", recipe, seeds=3), digits, tmp_path / "all", device="cuda", graph=True
    )
    alone = train(
        RunConfig("pcapsnet1", "digits", "x", recipe, seed=2), digits, tmp_path / "one", device="cuda", graph=True
    )
    assert [row["loss/2"] for row in together.history] == pytest.approx(
        [row["loss"] for row in alone.history], rel=2e-2
    )
