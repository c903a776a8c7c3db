"""The learning rate as a function of the step."""

from __future__ import annotations

import math

from purecaps.train.recipe import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate that training step `step` (from 0) uses."""
    warmup = round(recipe.warmup * recipe.steps)
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    if recipe.schedule == "step":
        return recipe.lr * recipe.step_factor ** (step // recipe.step_every)
    if recipe.schedule == "cosine":
        done = (step - warmup) / max(1, recipe.steps - warmup)
        return recipe.lr * 0.5 * (1 + math.cos(math.pi * done))
    return recipe.lr
