"""The recipes of the routing networks' authors, against what their papers and code say."""

import re
from pathlib import Path

import pytest
import torch

from purecaps.data import Dataset, Split
from purecaps.data.transforms import parse
from purecaps.train import RECIPES, get_recipe
from purecaps.train.schedule import learning_rate
from purecaps.train.zoo_recipes import ZOO_CIFAR_RECIPES, ZOO_RECIPES

NAMES = (
    "capsnet_dr", "capsnet_em", "dcnet", "dcnetpp", "attncaps", "mscaps", "frms", "frem", "capsnet_vb",
    "efficient_capsnet", "idpa",
)  # fmt: skip


def images(name, shape, count):
    pixels = torch.zeros(1, dtype=torch.uint8).expand(count, *shape)
    split = Split(pixels, torch.arange(count) % 10)
    return Dataset(name, split, split, tuple("abcdefghij"))


MNIST, CIFAR = images("mnist", (1, 28, 28), 60_000), images("cifar10", (3, 32, 32), 50_000)


def assert_fields(recipe, **expected):
    assert {name: getattr(recipe, name) for name in expected} == expected


def test_every_network_has_a_recipe_for_both_sets():
    assert tuple(ZOO_RECIPES) == tuple(ZOO_CIFAR_RECIPES) == NAMES
    assert set(NAMES) <= set(RECIPES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dataset", [MNIST, CIFAR], ids=lambda dataset: dataset.name)
def test_a_recipe_suits_its_images_and_leaves_initial_weights_to_the_network(name, dataset):
    recipe = get_recipe(name, dataset)
    assert recipe.init is None
    height, width = parse(recipe.augment).out_size(*dataset.in_shape[1:])
    assert (height, width) == ((24, 24) if "crop:24" in recipe.augment else dataset.in_shape[1:])
    assert recipe.model_options() == {}
    assert 0 < learning_rate(recipe, recipe.steps - 1) <= recipe.lr


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_the_recipes_page_has_their_steps_batches_and_weight_decay(name):
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()
    section = page.split("## The routing networks")[1].splitlines()
    (row,) = (line for line in section if line.startswith("|") and f"`{name}`" in line)
    optimiser, rate, steps = (row.split("|")[column] for column in (2, 3, 5))
    both = [ZOO_RECIPES[name], ZOO_CIFAR_RECIPES[name]]
    assert [int(each.replace(",", "")) for each in re.findall(r"[\d,]{4,}", steps)] == [each.steps for each in both]
    batches = re.findall(r"\d+", optimiser.split(",")[-1])
    assert {int(each) for each in batches} == {each.batch_size for each in both}
    decay = re.search(r"weight decay ([\d.e-]+)", optimiser)
    assert (float(decay[1]) if decay else 0.0) == pytest.approx(both[0].weight_decay)
    assert rate.split()[0].rstrip(",") == f"{both[0].lr:g}"


@pytest.mark.parametrize("name", NAMES)
def test_colour_images_are_standardised_or_taken_as_their_authors_did(name):
    photographs = images("photographs", (3, 40, 40), 500)
    recipe = get_recipe(name, photographs)
    assert recipe.preprocess == "standardise"
    assert recipe.val_size <= 50
    assert not any(text.startswith("crop") for text in recipe.augment)


def test_dynamic_routing_is_sabours():
    recipe = get_recipe("capsnet_dr", MNIST)
    assert_fields(recipe, optimiser="adam", batch_size=128, steps=300_000, augment=("shift:2",), loss="margin")
    assert_fields(recipe, m_pos=0.9, m_neg=0.1, lam=0.5, weight_decay=0.0, preprocess="none")
    for step, expected in ((0, 1e-3), (1000, 1e-3 * 0.96**0.5), (2000, 0.96e-3), (10_000_000, 1e-6)):
        assert learning_rate(recipe, step) == pytest.approx(expected)
    cifar = get_recipe("capsnet_dr", CIFAR)
    assert learning_rate(cifar, cifar.steps - 1) == pytest.approx(1e-6), "their 260,000 steps after that are left out"
    assert_fields(cifar, augment=("crop:24", "flip", "brightness:0.247", "contrast:0.8", "standardise"))


def test_em_routing_is_hintons():
    recipe = get_recipe("capsnet_em", MNIST)
    assert_fields(recipe, optimiser="adam", loss="spread", spread_from=0.2, spread_to=0.9, batch_size=64)
    assert_fields(recipe, weight_decay=10 * 2e-7, lr=0.003)
    assert learning_rate(recipe, 20_000) == pytest.approx(0.003 * 0.96)
    short = recipe.in_steps(5000)
    assert learning_rate(short, 4999) == pytest.approx(0.003 * 0.96**100, rel=0.01), "it ends where the authors' ends"


def test_the_dense_networks_rate_falls_once_an_epoch():
    recipe = get_recipe("dcnet", MNIST)
    assert_fields(recipe, optimiser="adam", batch_size=100, augment=("shift:3",))
    assert [learning_rate(recipe, step) for step in (0, 599, 600)] == pytest.approx([0.001, 0.001, 0.0009])
    assert_fields(get_recipe("dcnetpp", CIFAR), batch_size=64, step_every=50_000 // 64, preprocess="standardise")


def test_attention_routing_uses_rmsprop():
    recipe = get_recipe("attncaps", MNIST)
    assert_fields(recipe, optimiser="rmsprop", beta2=0.9, adam_eps=1e-8, batch_size=100, augment=())
    assert recipe.steps == 20 * (60_000 - recipe.val_size) // 100
    assert learning_rate(recipe, 10_000) == pytest.approx(0.0005)


def test_the_multi_scale_network_decays_its_weights_by_the_gradient():
    assert_fields(get_recipe("mscaps", CIFAR), optimiser="adam", weight_decay=128 * 1e-5, schedule="constant", lr=0.001)


def test_variational_routing_takes_the_cross_entropy_of_activations_as_they_are():
    recipe = get_recipe("capsnet_vb", MNIST)
    assert_fields(recipe, optimiser="adam", loss="cross_entropy", scale=1.0, batch_size=128, lr=0.001)
    assert recipe.steps == 300 * ((60_000 - recipe.val_size) // 128)


def test_efficient_capsnets_rate_has_a_floor():
    recipe = get_recipe("efficient_capsnet", MNIST)
    assert_fields(recipe, batch_size=16, steps=150 * 3750, pixel_scale=1 / 256)
    rates = [learning_rate(recipe, step) for step in (0, 3750, 562_499)]
    assert rates == pytest.approx([5e-4, 5e-4 * 0.97, 5e-5])


def test_inverted_dot_product_attention_uses_sgd_with_two_falls():
    recipe = get_recipe("idpa", CIFAR)
    assert_fields(recipe, optimiser="sgd", beta1=0.9, weight_decay=5e-4, batch_size=128, scale=1.0)
    assert_fields(recipe, augment=("crop:32,padding=4", "flip"), preprocess="standardise")
    rates = [learning_rate(recipe, epoch * 391) for epoch in (149, 150, 249, 250, 349)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001, 0.001])
