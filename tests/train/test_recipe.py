"""Recipes: what they say, what they refuse, and the learning rate that follows."""

import json
import math

import pytest
import torch

from purecaps.data import Dataset, Split
from purecaps.errors import ConfigError, PurecapsError, UnknownNameError
from purecaps.train import RECIPES, Recipe, get_recipe
from purecaps.train.schedule import learning_rate


def images(name: str, channels: int, count: int = 60_000) -> Dataset:
    split = Split(torch.zeros(1, channels, 1, 1, dtype=torch.uint8).expand(count, -1, 32, 32), torch.arange(count) % 2)
    return Dataset(name, split, split, ("a", "b"))


MNIST, CIFAR, PHOTOS = images("mnist", 1), images("cifar10", 3, 50_000), images("photos", 3, 200)


def test_the_papers_recipe_is_the_appendix_to_the_letter():
    mnist = get_recipe("paper", MNIST)
    assert (mnist.steps, mnist.batch_size, mnist.lr, mnist.step_every, mnist.step_factor) == (
        30_000,
        128,
        0.002,
        4000,
        0.5,
    )
    assert (mnist.loss, mnist.m_pos, mnist.m_neg, mnist.lam) == ("margin", 0.5, 0.1, 0.5)
    assert (mnist.augment, mnist.init, mnist.squash_chunk) == (("shift:2",), "msra", None)
    cifar = get_recipe("paper", CIFAR)
    assert (cifar.steps, cifar.batch_size, cifar.lr, cifar.step_every) == (50_000, 256, 0.001, 10_000)
    assert (cifar.m_pos, cifar.m_neg, cifar.lam, cifar.preprocess, cifar.augment) == (
        0.6,
        0.1,
        0.5,
        "gcn_zca",
        ("crop:24",),
    )


def test_the_authors_recipe_is_what_their_code_does():
    recipe = get_recipe("authors", MNIST)
    assert (recipe.lr, recipe.steps, recipe.step_every) == (0.01, 40_000, 4000)
    assert (recipe.augment, recipe.pixel_scale, recipe.init, recipe.squash_chunk) == ((), 1 / 256, "caffe", 8)


def test_a_small_set_of_photographs_is_not_cropped_and_keeps_most_of_its_images():
    recipe = get_recipe("default", PHOTOS)
    assert not any(spec.startswith("crop") for spec in recipe.augment)
    assert (recipe.val_size, recipe.preprocess) == (20, "standardise")


def test_a_folder_that_is_called_cifar10_is_not_cifar10():
    assert get_recipe("default", images("cifar10", 3, 40)).val_size == 4


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("dataset", [MNIST, CIFAR, PHOTOS], ids=lambda dataset: dataset.name)
def test_a_recipe_survives_json(name, dataset):
    recipe = get_recipe(name, dataset)
    assert Recipe.from_dict(json.loads(json.dumps(recipe.as_dict()))) == recipe


def test_the_rate_is_halved_every_4000_steps():
    recipe = get_recipe("paper", MNIST)
    assert [learning_rate(recipe, step) for step in (0, 3999, 4000, 8000)] == [0.002, 0.002, 0.001, 0.0005]


def test_cosine_rises_in_the_warm_up_and_falls_to_nothing():
    recipe = Recipe(steps=100, lr=1.0, schedule="cosine", warmup=0.1)
    assert learning_rate(recipe, 0) == 0.1
    assert learning_rate(recipe, 9) == learning_rate(recipe, 10) == 1.0
    assert math.isclose(learning_rate(recipe, 55), 0.5)
    assert 0 < learning_rate(recipe, 99) < 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps: expected an int >= 1, got 0"),
        ({"steps": "3"}, "steps: expected an int, got '3'"),
        ({"steps": 2.5}, "steps: expected an int, got 2.5"),
        ({"val_size": True}, "val_size: expected an int, got True"),
        ({"squash_chunk": 1.5}, "squash_chunk: expected an int, got 1.5"),
        ({"lr": "0.1"}, "lr: expected a number, got '0.1'"),
        ({"steps": 10**8}, "steps: expected an int up to 99999999, got 100000000"),
        ({"batch_size": 10**30}, "batch_size: expected an int up to 1048576, got 1000000000000000000000000000000"),
        ({"augment": ("shift:4097",)}, "shift: pixels must be a whole number <= 4096, got 4097"),
        ({"augment": ("crop:28,padding=99999",)}, "crop: padding must be a whole number <= 4096, got 99999"),
        ({"lr": -1.0}, "lr: expected a finite number above 0, got -1.0"),
        ({"lr": math.nan}, "lr: expected a finite number above 0, got nan"),
        ({"ema": 1.0}, r"ema: expected a number in \[0, 1\), got 1.0"),
        ({"lr": 0.001, "min_lr": 0.5}, "min_lr: expected a number up to lr, 0.001, got 0.5"),
        ({"m_pos": 0.05}, "m_pos: expected a number above m_neg, got 0.05"),
        ({"loss": "marign"}, "unknown loss 'marign': did you mean margin"),
        ({"schedule": "linear"}, "unknown schedule 'linear'.*constant, cosine, exponential, inverse, milestones, step"),
        ({"augment": ("shfit:2",)}, "unknown name 'shfit'"),
        ({"learning_rate": 1}, "unknown recipe option 'learning_rate'"),
        ({"val_size": -1}, "val_size: expected a finite number >= 0, got -1"),
        ({"probe_size": -5}, "probe_size: expected a finite number >= 0, got -5"),
        ({"init_correlation": 1.0}, r"init_correlation: expected a number in \[0, 1\), got 1.0"),
    ],
)
def test_a_senseless_recipe_is_refused(change, message):
    with pytest.raises(PurecapsError, match=message):
        Recipe().replace(**change)


def test_an_unknown_recipe_names_the_known_ones():
    with pytest.raises(UnknownNameError, match="unknown recipe 'papers': did you mean paper"):
        get_recipe("papers", MNIST)


def test_config_errors_are_value_errors_too():
    with pytest.raises(ValueError, match="batch_size"):
        Recipe(batch_size=0)
    assert issubclass(ConfigError, ValueError)
