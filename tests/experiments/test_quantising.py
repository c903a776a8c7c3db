"""What is lost in integers, of one network and over seeds."""

from dataclasses import replace

import pytest
import torch

from purecaps.evaluate.trained import TrainedModel
from purecaps.experiments.quantising import compare, over_seeds, predictions
from purecaps.models import save_model


def test_both_networks_are_judged_by_the_test_images(digits):
    trained = TrainedModel.from_package("pcapsnet1")
    found = compare(trained, digits)
    labels = digits.test.labels
    expected = trained.scores(digits.test.images).argmax(dim=1)
    assert found.images == 40
    assert found.float_mistakes == int((expected != labels).sum())
    assert found.mistakes == int((predictions(found.network, digits.test) != labels).sum())
    assert found.differing == int((predictions(found.network, digits.test) != expected).sum())
    assert found.network.info.record["test_error"] == found.error
    assert found.network.info.record["float_test_error"] == found.float_error
    assert found.network.info.record["calibration_images"] == 144  # a tenth of 160 is held out


def test_equal_scores_in_float_are_still_told_apart_as_integers():
    scores = torch.tensor([[2**30, 2**30 + 1]], dtype=torch.int32)
    assert scores.float().argmax(dim=1).tolist() == [0]  # what must not happen
    assert scores.argmax(dim=1).tolist() == [1]


@pytest.mark.parametrize("steps", [0, 2])
def test_seeds_are_summed_up(digits, tmp_path, steps):
    trained = TrainedModel.from_package("pcapsnet1")
    for seed in (3, 4):
        torch.manual_seed(seed)
        for block in trained.model.capsule_blocks():
            block.conv.weight.data.mul_(1 + 0.2 * torch.randn_like(block.conv.weight))
        info = replace(trained.info, record={"seed": seed, "recipe": "best"})
        save_model(trained.model, tmp_path / f"seed{seed}" / "model.safetensors", info)
    found = over_seeds([tmp_path / "seed3", tmp_path / "seed4"], digits, aware_steps=steps)
    assert (found["model"], found["recipe"], found["aware_steps"]) == ("pcapsnet1", "best", steps)
    assert [row["seed"] for row in found["runs"]] == [3, 4]
    first, second = (row["int8_error"] for row in found["runs"])
    assert found["int8_error"]["mean"] == pytest.approx((first + second) / 2)
    assert found["int8_error"]["std"] == pytest.approx(abs(first - second) / 2**0.5)
    for row in found["runs"]:
        assert row["lost_points"] == pytest.approx(row["int8_error"] - row["float_error"])
    assert found["constant_bytes"] == 2952 + 2 * (16 + 6 + 4 + 6 + 40) + 2 * 145
    assert found["constant_bytes"] < found["file_bytes"]
