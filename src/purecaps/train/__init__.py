"""Training: recipes, the one loop, and checkpoints it can go on from."""

from purecaps.train.config import RunConfig, pick_device
from purecaps.train.loop import TrainedRun, Trainer, train
from purecaps.train.recipe import Recipe
from purecaps.train.recipes import RECIPES, get_recipe

__all__ = ["RECIPES", "Recipe", "RunConfig", "TrainedRun", "Trainer", "get_recipe", "pick_device", "train"]
