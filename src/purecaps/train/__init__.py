"""Training: recipes, the one loop, and checkpoints it can go on from."""

from purecaps.train.config import RunConfig, pick_device
from purecaps.train.loop import Trainer
from purecaps.train.recipe import Recipe
from purecaps.train.recipes import RECIPES, get_recipe
from purecaps.train.start import make_trainer, train
from purecaps.train.trained_run import TrainedRun

__all__ = [
    "RECIPES",
    "Recipe",
    "RunConfig",
    "TrainedRun",
    "Trainer",
    "get_recipe",
    "make_trainer",
    "pick_device",
    "train",
]
