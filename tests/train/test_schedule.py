"""What changes from step to step."""

import pytest
import torch

from purecaps.errors import PurecapsError
from purecaps.losses import spread_loss
from purecaps.models import create_model
from purecaps.train import Recipe, RunConfig, train
from purecaps.train.schedule import learning_rate, spread_margin


def rates(recipe, *steps):
    return pytest.approx([learning_rate(recipe, step) for step in steps], rel=1e-9)


def test_an_exponential_schedule_falls_at_every_step():
    recipe = Recipe(lr=0.001, schedule="exponential", step_every=2000, step_factor=0.96)
    assert rates(recipe, 0, 1000, 2000, 4000) == [0.001, 0.001 * 0.96**0.5, 0.001 * 0.96, 0.001 * 0.96**2]


@pytest.mark.parametrize("schedule", ["step", "exponential", "inverse", "cosine"])
def test_no_schedule_falls_below_the_least_rate(schedule):
    recipe = Recipe(steps=1000, lr=0.1, schedule=schedule, step_every=10, min_lr=0.02)
    assert rates(recipe, 0, 999) == [0.1, 0.02]


def test_the_warm_up_may_be_below_the_least_rate():
    recipe = Recipe(steps=100, lr=0.1, warmup=0.1, schedule="constant", min_lr=0.05)
    assert rates(recipe, 0, 9, 10) == [0.01, 0.1, 0.1]


def test_an_inverse_schedule_is_keras_decay():
    recipe = Recipe(lr=0.001, schedule="inverse", step_every=10_000)
    assert rates(recipe, 0, 10_000, 30_000) == [0.001, 0.001 / (1 + 1e-4 * 10_000), 0.001 / (1 + 1e-4 * 30_000)]


def test_milestones_are_shares_of_the_run():
    recipe = Recipe(steps=700, lr=0.1, schedule="milestones", step_factor=0.1, milestones=(3 / 7, 5 / 7))
    assert rates(recipe, 0, 299, 300, 499, 500, 699) == [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]


def test_a_recipe_in_fewer_steps_ends_at_the_same_rate():
    whole = Recipe(steps=300_000, lr=0.001, schedule="exponential", step_every=2000, step_factor=0.96)
    short = whole.in_steps(30_000)
    assert (short.steps, short.step_every) == (30_000, 200)
    assert learning_rate(short, 30_000) == pytest.approx(learning_rate(whole, 300_000))


def test_the_margin_rises_in_a_straight_line_over_the_run():
    recipe = Recipe(steps=101, loss="spread", spread_from=0.2, spread_to=0.9)
    assert spread_margin(recipe, 0) == 0.2
    assert spread_margin(recipe, 50) == pytest.approx(0.55)
    assert spread_margin(recipe, 100) == pytest.approx(0.9)
    assert spread_margin(recipe, 500) == pytest.approx(0.9)
    assert spread_margin(recipe.replace(steps=1), 0) == 0.2


def test_a_step_on_the_device_gives_the_same_margin_without_being_read():
    recipe = Recipe(steps=101, loss="spread")
    for step in (0, 37, 100, 103):
        margin = spread_margin(recipe, torch.tensor(step))
        assert margin.item() == pytest.approx(spread_margin(recipe, step), rel=1e-6)
    # A meta tensor has no value: reading it would raise.
    assert spread_margin(recipe, torch.tensor(3, device="meta")).shape == ()


@pytest.mark.parametrize("graph", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_every_step_is_taken_with_its_own_margin(digits, tmp_path, graph):
    # All images in each batch and hardly any rate: what is left to change is the margin.
    recipe = Recipe(steps=5, batch_size=160, lr=1e-12, loss="spread", spread_from=0.1, spread_to=0.5, log_every=1)
    device = "cuda" if graph else "cpu"
    run = train(RunConfig("pcapsnet1", "digits", "x", recipe, seed=2), digits, tmp_path, device=device, graph=graph)
    torch.manual_seed(2)
    scores = create_model("pcapsnet1")(digits.train.images / 255)
    expected = [spread_loss(scores, digits.train.labels, margin=m).item() for m in (0.1, 0.2, 0.3, 0.4, 0.5)]
    assert [row["loss"] for row in run.history] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"milestones": (0.5, 1.0)}, r"milestones: expected shares between 0 and 1, got \(0.5, 1.0\)"),
        ({"schedule": "milestones"}, r"milestones: expected one or more with schedule milestones, got \(\)"),
        ({"min_lr": -1e-6}, "min_lr: expected a finite number >= 0, got -1e-06"),
        ({"spread_from": 0.95}, "spread_to: expected a number from spread_from on, got 0.9"),
        ({"optimiser": "adma"}, "unknown optimiser 'adma': did you mean adam"),
        (
            {"adversary_eps": 0.1, "augment": ("flip", "contrast:0.2")},
            "adversary_eps: .* augment contrast:0.2.*got 0.1",
        ),
    ],
)
def test_settings_that_make_no_sense_are_refused(change, message):
    with pytest.raises(PurecapsError, match=message):
        Recipe().replace(**change)
