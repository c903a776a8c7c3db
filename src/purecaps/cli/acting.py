"""Options of a recipe that do nothing in the run they were given for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from purecaps.errors import ConfigError
from purecaps.train.recipe import OPTIMISERS, SCHEDULES, Recipe

_ADAM = ("adamw", "adam", "rmsprop")

# Each field that is read beside certain values of another alone: that field, and the values; none are any but 0.
ACTS_WITH: dict[str, tuple[str, tuple[str, ...]]] = {
    "step_every": ("schedule", ("step", "exponential", "inverse")),
    "step_factor": ("schedule", ("step", "exponential", "milestones")),
    "milestones": ("schedule", ("milestones",)),
    "min_lr": ("schedule", tuple(name for name in SCHEDULES if name != "constant")),
    "beta1": ("optimiser", tuple(name for name in OPTIMISERS if name != "rmsprop")),
    "beta2": ("optimiser", _ADAM),
    "adam_eps": ("optimiser", _ADAM),
    **dict.fromkeys(("m_pos", "m_neg", "lam"), ("loss", ("margin",))),
    **dict.fromkeys(("spread_from", "spread_to"), ("loss", ("spread",))),
    **dict.fromkeys(("scale", "label_smoothing"), ("loss", ("cross_entropy",))),
    "adversary_steps": ("adversary_eps", ()),
    "teacher_temperature": ("teacher_share", ()),
}


def require_acting(recipe: Recipe, overrides: Mapping[str, Any]) -> None:
    """Refuses what a user typed and the run would not read; what the recipe itself leaves unread is no mistake.

    Args:
        recipe: the run's, with the overrides.
        overrides: the fields that were given, with their values.
    """
    for name in (name for name in overrides if name in ACTS_WITH):
        other, values = ACTS_WITH[name]
        has = getattr(recipe, other)
        if has not in values if values else not has:
            expected = " or ".join(values) if values else "above 0"
            raise ConfigError(
                f"--{_option(name)}: expected it with --{_option(other)} {expected}, got it with {has}: "
                f"{overrides[name]}"
            )


def _option(name: str) -> str:
    return name.replace("_", "-")
