"""Trained networks as files."""

from dataclasses import replace

import pytest
import torch

from purecaps.errors import CheckpointError, ConfigError, UnknownNameError
from purecaps.models import ModelInfo, create_model, list_models, load_model, save_model
from purecaps.models.store import load_weights, pretrained_path

INFO = ModelInfo(
    "pcapsnet1", (3, 29, 29), (3, 32, 32), 4, {"squash_chunk": 8}, ("a", "b", "c", "d"), augment=("crop:29",)
)


def test_a_saved_network_comes_back_with_all_it_needs(tmp_path):
    model = create_model("pcapsnet1", in_shape=(3, 29, 29), num_classes=4, squash_chunk=8)
    save_model(model, tmp_path / "m.safetensors", INFO)
    loaded, info = load_model(tmp_path / "m.safetensors")
    assert info == INFO
    assert not loaded.training
    images = torch.rand(2, 3, 29, 29)
    assert torch.equal(loaded(images), model(images))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"name": "mine"}, UnknownNameError, "unknown model 'mine'"),
        (
            {"name": "pcapsnet2"},
            ConfigError,
            r"info: expected the description of this network, got that of another pcapsnet2: expected blocks.1",
        ),
        (
            {"num_classes": 5, "class_names": ()},
            ConfigError,
            r"expected blocks.4.conv.weight of shape \(3, 3, 1, 5, 1, 6, 4\), got \(3, 3, 1, 4, 1, 6, 4\)",
        ),
        ({"overrides": {"mean": (0.5,) * 3}}, ConfigError, "expected the tensors of this model, found no 'mean'"),
    ],
)
def test_a_description_of_another_network_is_refused_and_nothing_is_written(tmp_path, change, error, message):
    model = create_model("pcapsnet1", in_shape=(3, 29, 29), num_classes=4, squash_chunk=8)
    with pytest.raises(error, match=message):
        save_model(model, tmp_path / "m.safetensors", replace(INFO, **change))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["pcapsnet2", "resnet"])
def test_saving_draws_no_random_numbers(tmp_path, name):
    model, state = create_model(name), torch.get_rng_state()
    shape = model.in_shape
    save_model(model, tmp_path / "m.safetensors", ModelInfo(name, shape, shape, 10))
    assert torch.equal(torch.get_rng_state(), state)


def test_classes_without_names_are_called_by_their_numbers():
    assert ModelInfo("pcapsnet1", (1, 28, 28), (1, 28, 28), 3).class_names == ("0", "1", "2")
    with pytest.raises(ConfigError, match="class_names: expected 3, one for each class, or none at all, got 2"):
        ModelInfo("pcapsnet1", (1, 28, 28), (1, 28, 28), 3, class_names=("a", "b"))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            {"num_classes": 5},
            r"expected blocks.4.conv.weight of shape \(3, 3, 1, 5, 1, 6, 4\), got \(3, 3, 1, 4, 1, 6, 4\)",
        ),
        ({"num_classes": 4, "mean": (0.5,)}, "found no 'mean': it was written for another model"),
    ],
)
def test_weights_of_another_model_are_refused_and_nothing_is_changed(other, message):
    model = create_model("pcapsnet1", **other)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match=message):
        load_weights(model, create_model("pcapsnet1", num_classes=4).state_dict(), what="m.safetensors")
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


PRETRAINED = [name for name in list_models() if pretrained_path(name) is not None]


def test_the_papers_networks_are_packaged():
    assert {f"pcapsnet{number}" for number in range(5)} <= set(PRETRAINED)


@pytest.mark.parametrize("name", PRETRAINED)
def test_pretrained_weights_load_offline_with_their_card(name):
    model = create_model(name, pretrained=True)
    assert not model.training
    card = pretrained_path(name).with_suffix(".md").read_text()
    info = load_model(pretrained_path(name))[1]
    assert f"{info.record['test_error']:.2f} %" in card
    assert info.record["command"] in card


@pytest.mark.parametrize("name", [name for name in PRETRAINED if name != "pcapsnet4"])
def test_pretrained_networks_read_real_digits(name, digits):
    images = torch.cat([digits.train.images, digits.test.images]).float() / 255
    labels = torch.cat([digits.train.labels, digits.test.labels])
    with torch.inference_mode():
        scores = create_model(name, pretrained=True)(images)
    assert (scores.argmax(dim=1) == labels).float().mean() >= 0.97


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 3}, "num_classes: expected 10, as the pretrained pcapsnet2 has, got 3"),
        ({"in_shape": (3, 28, 28)}, "in_shape: expected 1 channels, as the pretrained pcapsnet2 has, got 3"),
    ],
)
def test_pretrained_weights_do_not_fit_any_network(options, message):
    with pytest.raises(ConfigError, match=message):
        create_model("pcapsnet2", pretrained=True, **options)
