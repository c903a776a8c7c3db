"""What changes from step to step: the learning rate, and the spread loss's margin."""

from __future__ import annotations

import math
from typing import overload

from torch import Tensor

from purecaps.train.recipe import Recipe


def learning_rate(recipe: Recipe, step: int) -> float:
    """The rate that training step `step` (from 0) uses."""
    warmup = round(recipe.warmup * recipe.steps)
    if step < warmup:
        return recipe.lr * (step + 1) / warmup
    return max(recipe.lr * _fall(recipe, step, warmup), recipe.min_lr)


def _fall(recipe: Recipe, step: int, warmup: int) -> float:
    """What the peak rate is multiplied with."""
    if recipe.schedule == "step":
        return float(recipe.step_factor ** (step // recipe.step_every))
    if recipe.schedule == "exponential":
        return math.pow(recipe.step_factor, step / recipe.step_every)
    if recipe.schedule == "inverse":
        return 1 / (1 + step / recipe.step_every)
    if recipe.schedule == "milestones":
        return float(recipe.step_factor ** sum(step >= share * recipe.steps for share in recipe.milestones))
    if recipe.schedule == "cosine":
        done = (step - warmup) / max(1, recipe.steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1.0


@overload
def spread_margin(recipe: Recipe, step: int) -> float: ...
@overload
def spread_margin(recipe: Recipe, step: Tensor) -> Tensor: ...
def spread_margin(recipe: Recipe, step: int | Tensor) -> float | Tensor:
    """The spread loss's margin at a step: in a straight line from the recipe's first to its last step.

    A step on the device, int64 [], gives a margin on the device: a CUDA graph has no other way to know its step.
    """
    done = step / max(1, recipe.steps - 1)
    done = done.clamp(max=1.0) if isinstance(done, Tensor) else min(1.0, done)
    return recipe.spread_from + (recipe.spread_to - recipe.spread_from) * done
