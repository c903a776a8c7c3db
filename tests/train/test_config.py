"""What a run is: what makes no sense is refused by name, and its file is read back or refused."""

import json

import pytest
import torch

from purecaps.errors import CheckpointError, ConfigError
from purecaps.train import RECIPES, Recipe, RunConfig, Trainer
from purecaps.train.start import side_by_side


def test_the_last_of_several_seeds_is_a_seed_too():
    assert RunConfig("pcapsnet1", "digits", "x", seed=2**63 - 3, seeds=3).all_seeds[-1] == 2**63 - 1
    with pytest.raises(ConfigError, match=r"seed: expected at most 2\^63 - 3 with 3 seeds, got 9223372036854775806"):
        RunConfig("pcapsnet1", "digits", "x", seed=2**63 - 2, seeds=3)


@pytest.mark.parametrize("damage", [{"image_size": [3]}, {"recipe": None}, {"options": 3}, {"new": 1}])
def test_a_damaged_configuration_is_refused(tmp_path, damage):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**RunConfig("pcapsnet1", "digits", "x").as_dict(), **damage}))
    with pytest.raises(CheckpointError, match=r"config.json: expected the configuration of a run, got"):
        RunConfig.load(path)


def test_a_run_of_an_older_version_has_no_options(tmp_path):
    run = RunConfig("pcapsnet1", "digits", "x")
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in run.as_dict().items() if k != "options"}))
    assert RunConfig.load(tmp_path / "config.json") == run


def test_an_option_that_the_images_decide_is_refused(digits, tmp_path):
    recipe = Recipe(preprocess="standardise")
    run = RunConfig("pcapsnet1", "digits", "x", recipe, options={"mean": [0.5]})
    with pytest.raises(ConfigError, match=r"option: expected none that recipe or images decide, got mean=\[0.5\]"):
        Trainer(run, digits, tmp_path)


def test_a_bug_in_a_network_without_options_is_not_blamed_on_them(digits, monkeypatch):
    def broken(*args):
        raise TypeError("unsupported operand")

    monkeypatch.setattr("purecaps.train.config.build_model", broken)
    with pytest.raises(TypeError, match="unsupported operand"):
        RunConfig("pcapsnet1", "digits", "x").new_network(digits.in_shape, 10, {})
    with pytest.raises(ConfigError, match="can be built with, got pool='max': unsupported operand"):
        RunConfig("pcapsnet1", "digits", "x", options={"pool": "max"}).new_network(digits.in_shape, 10, {})


def test_a_recipe_that_asks_for_what_the_network_does_not_have_is_named(digits, tmp_path):
    run = RunConfig("efficient_capsnet", "digits", "default", RECIPES["default"].replace(val_size=20), seeds=2)
    message = (
        r"recipe: expected one without init for efficient_capsnet, which has no such option, got 'default' with init "
        r"'caffe'; its own recipe is 'efficient_capsnet'"
    )
    with pytest.raises(ConfigError, match=message):
        Trainer(run, digits, tmp_path)
    with pytest.raises(ConfigError, match=message):
        side_by_side(run, digits, torch.device("cuda"))


def test_an_option_that_no_recipe_asked_for_is_named_itself(digits):
    run = RunConfig("efficient_capsnet", "digits", "x", Recipe(init=None))
    with pytest.raises(ConfigError, match="efficient_capsnet: has no option 'colour'"):
        run.new_network(digits.in_shape, 10, {"colour": True})
