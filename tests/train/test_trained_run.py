"""A finished run's network as a file."""

import pytest
import torch
from tiny import assert_same_state

from purecaps.data import Dataset, Split
from purecaps.errors import CheckpointError, ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.train import Recipe, RunConfig, get_recipe, train

RECIPE = Recipe(steps=2, batch_size=8, lr=0.01, loss="cross_entropy", scale=1.0, init=None)
pytestmark = pytest.mark.usefixtures("tiny_networks")


def colours(seed=0):
    """Random images in colour of three classes, 14 x 14."""
    draw = torch.Generator().manual_seed(seed)
    splits = [
        Split(torch.randint(0, 256, (30, 3, 14, 14), dtype=torch.uint8, generator=draw), torch.arange(30) % 3)
        for _ in range(2)
    ]
    return Dataset("colours", *splits, ("red", "green", "blue"))


def trained(dataset, out, recipe):
    return train(RunConfig("normalised", "colours", "x", recipe), dataset, out)


@pytest.mark.parametrize("change", [{"preprocess": "standardise"}, {"preprocess": "gcn_zca"}, {"pixel_scale": 1 / 256}])
def test_a_saved_network_takes_raw_images_as_the_run_did(tmp_path, change):
    dataset = colours()
    run = trained(dataset, tmp_path / "run", RECIPE.replace(augment=("crop:12",), **change))
    run.save(tmp_path / "saved" / "m.safetensors")
    found = TrainedModel.from_file(tmp_path / "saved" / "m.safetensors")
    assert (found.info.class_names, found.info.trained_on) == (("red", "green", "blue"), "colours")
    assert (found.info.record["recipe"], found.info.record["seed"]) == ("x", 0)
    (images, _), *_ = run.prepared.test.eval_batches(30)
    torch.testing.assert_close(found.scores(dataset.test.images), run.model(images))


def test_the_authors_recipe_comes_back_as_the_same_network(digits, tmp_path):
    recipe = get_recipe("authors", digits).in_steps(2).replace(batch_size=8, val_size=0)
    run = train(RunConfig("pcapsnet1", "mnist", "authors", recipe), digits, str(tmp_path))
    run.save(str(tmp_path / "m.safetensors"))
    found = TrainedModel.from_file(tmp_path / "m.safetensors")
    assert found.model.capsule_blocks()[0].squash_chunk == recipe.squash_chunk == 8
    assert found.info.pixel_scale == recipe.pixel_scale


def test_each_of_several_seeds_can_be_saved(digits, tmp_path):
    run = train(RunConfig("pcapsnet1", "digits", "x", RECIPE, seed=4, seeds=2), digits, tmp_path)
    for position, seed in enumerate((None, 5)):
        run.save(tmp_path / "m.safetensors", seed=seed)
        found = TrainedModel.from_file(tmp_path / "m.safetensors")
        assert_same_state(found.model, run.models[position])
        assert found.info.record["seed"] == 4 + position
    with pytest.raises(ConfigError, match="seed: expected one of 4, 5, as the run has, got 0"):
        run.save(tmp_path / "other.safetensors", seed=0)


def test_another_networks_whitening_is_not_overwritten(tmp_path):
    recipe = RECIPE.replace(preprocess="gcn_zca")
    runs = [trained(colours(seed), tmp_path / str(seed), recipe) for seed in (0, 1)]
    runs[0].save(tmp_path / "a.safetensors")
    runs[0].save(tmp_path / "b.safetensors")
    before = (tmp_path / "whitening.safetensors").read_bytes()
    with pytest.raises(CheckpointError, match=r"whose whitening.safetensors is another network's"):
        runs[1].save(tmp_path / "c.safetensors")
    assert (tmp_path / "whitening.safetensors").read_bytes() == before
    assert not (tmp_path / "c.safetensors").exists()
