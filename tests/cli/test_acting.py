"""Options of a recipe that would do nothing are refused, and no others."""

import re
from dataclasses import replace

import pytest
import torch

from purecaps.cli.acting import ACTS_WITH, require_acting
from purecaps.errors import ConfigError
from purecaps.train.loss import loss_of
from purecaps.train.optimiser import make_optimiser
from purecaps.train.recipe import LOSSES, OPTIMISERS, SCHEDULES, Recipe
from purecaps.train.schedule import learning_rate

OTHER = {
    "step_every": 7,
    "step_factor": 0.3,
    "milestones": (0.2,),
    "min_lr": 1.5e-3,
    "beta1": 0.5,
    "beta2": 0.7,
    "adam_eps": 1e-3,
    "m_pos": 0.8,
    "m_neg": 0.3,
    "lam": 0.9,
    "spread_from": 0.3,
    "spread_to": 0.7,
    "scale": 3.0,
    "label_smoothing": 0.2,
}
BASE = Recipe(steps=40, step_every=5, milestones=(0.5,))


def rates(recipe):
    return [learning_rate(recipe, step) for step in range(recipe.steps)]


def losses(recipe):
    scores = torch.tensor([[0.1, 0.45, 0.2], [0.35, 0.4, 0.05]])
    return [float(loss_of(recipe, scores, torch.tensor([0, 1]), step)) for step in (0, 39)]


def settings(recipe):
    group = make_optimiser(torch.nn.Linear(2, 2), recipe).param_groups[0]
    return {name: value for name, value in group.items() if name != "params"}


@pytest.mark.parametrize(
    ("field", "choices", "effect"),
    [("schedule", SCHEDULES, rates), ("loss", LOSSES, losses), ("optimiser", OPTIMISERS, settings)],
    ids=["schedule", "loss", "optimiser"],
)
def test_an_option_is_refused_exactly_where_it_changes_nothing(field, choices, effect):
    names = [name for name, (other, _) in ACTS_WITH.items() if other == field]
    for choice in choices:
        recipe = replace(BASE, **{field: choice})
        for name in names:
            changed = replace(recipe, **{name: OTHER[name]})
            acts = effect(changed) != effect(recipe)
            if acts:
                require_acting(changed, {name: OTHER[name]})
                continue
            with pytest.raises(ConfigError, match=rf"^--{name.replace('_', '-')}: .* got it with {choice}: "):
                require_acting(changed, {name: OTHER[name]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"m_pos": 0.9, "loss": "spread"}, "--m-pos: expected it with --loss margin, got it with spread: 0.9"),
        ({"beta2": 0.9, "optimiser": "sgd"}, "expected it with --optimiser adamw or adam or rmsprop, got it with sgd"),
        ({"adversary_steps": 3}, "--adversary-steps: expected it with --adversary-eps above 0, got it with 0.0: 3"),
        ({"teacher_temperature": 2.0}, "expected it with --teacher-share above 0, got it with 0.0: 2.0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_the_message_says_what_the_option_is_for_and_what_the_run_has(changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        require_acting(BASE.replace(**changes), changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"adversary_eps": 0.1, "adversary_steps": 3},
        {"loss": "cross_entropy", "teacher_share": 0.5, "teacher_temperature": 2.0},
        {"loss": "spread"},
        {"loss": "cross_entropy", "label_smoothing": 0.1, "warmup": 0.1},
    ],
    ids=" ".join,
)
def test_what_acts_and_what_nobody_typed_is_let_through(changes):
    require_acting(BASE.replace(**changes), changes)
