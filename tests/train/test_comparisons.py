"""What comparisons ask of a run: options of the network in the recipe, and the loss on untransformed training images."""

import pytest
import torch
from torch.nn import functional as F

from purecaps.evaluate.trained import TrainedModel
from purecaps.experiments.run import run
from purecaps.train import Recipe, RunConfig, train
from purecaps.train.prepare import prepare

SHORT = Recipe(
    steps=4,
    batch_size=16,
    lr=0.01,
    loss="cross_entropy",
    augment=("shift:2",),
    init="caffe",
    val_size=20,
    log_every=2,
    eval_every=4,
    checkpoint_every=2,
)
OPTIONS = {"init_correlation": 0.4, "coefficients": "softmax", "squash_chunk": 8, "squash_gradient": "diagonal"}


@pytest.mark.parametrize("seeds", [1, 2])
def test_the_networks_options_travel_from_the_recipe_to_the_saved_network(seeds, digits, tmp_path):
    config = RunConfig("pcapsnet2", "digits", "default", SHORT.replace(**OPTIONS), seeds=seeds)
    outcome = run(config, digits, tmp_path, device=torch.device("cpu"))
    folder = tmp_path if seeds == 1 else tmp_path / "seed-1"
    trained = TrainedModel.from_file(folder)
    assert trained.info.overrides == {"init": "caffe", **OPTIONS}
    expected = outcome.trained.models[-1]
    images = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(trained.model(images), expected(images))
    conv = trained.model.blocks[4].conv
    assert (conv.coupling != 0).all(), "the logits were trained"


def test_options_that_are_left_open_are_not_asked_of_a_network():
    assert Recipe(init=None).model_options() == {}


def test_a_probe_is_the_same_part_of_the_training_images_for_every_seed(digits):
    recipe = Recipe(batch_size=8, val_size=20, probe_size=31)
    first, second = (prepare(digits, recipe, seeds=[seed], device="cpu") for seed in (0, 1))
    assert torch.equal(first.probe.images, second.probe.images)
    trained_on = {image.numpy().tobytes() for image in first.train.images}
    probed = {image.numpy().tobytes() for image in first.probe.images}
    assert len(probed) == 31
    assert probed <= trained_on
    assert len(first.probe.labels.unique()) > 5


def test_the_probes_loss_is_that_of_the_network_on_untransformed_images(digits, tmp_path):
    config = RunConfig("pcapsnet1", "digits", "x", SHORT.replace(probe_size=50))
    trained = train(config, digits, tmp_path)
    assert ["train_loss" in row for row in trained.history] == [False, True]
    probe = trained.prepared.probe
    scores = trained.model(probe.images.float() / 255)
    row = trained.history[-1]
    assert row["train_loss"] == pytest.approx(F.cross_entropy(10 * scores, probe.labels).item(), rel=1e-5)
    assert row["train_error"] == pytest.approx(100 * (scores.argmax(1) != probe.labels).float().mean().item())
    assert {"val_loss", "val_error"} <= row.keys()


def test_each_seed_has_a_probe_loss_of_its_own(digits, tmp_path):
    config = RunConfig("pcapsnet1", "digits", "x", SHORT.replace(probe_size=50), seeds=2)
    row = train(config, digits, tmp_path).history[-1]
    assert row["train_loss/0"] != row["train_loss/1"]
    assert row["train_loss"] == pytest.approx((row["train_loss/0"] + row["train_loss/1"]) / 2)


def test_watching_a_probe_changes_nothing_in_training(digits, tmp_path):
    weights = []
    for size in (0, 50):
        config = RunConfig("pcapsnet1", "digits", "x", SHORT.replace(probe_size=size))
        weights.append(train(config, digits, tmp_path / str(size)).model.state_dict())
    torch.testing.assert_close(*weights, rtol=0, atol=0)
