"""The plain networks that capsule networks are compared with."""

import pytest
import torch

from purecaps import create_model
from purecaps.errors import ConfigError
from purecaps.models.registry import get_entry
from purecaps.train import RECIPES

NAMES = ["cnn_baseline", "cnn_small", "lenet"]


def count(name, **options):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in create_model(name, **options).parameters())


def test_the_baseline_has_the_published_35_4_million_parameters():
    convolutions = (25 * 1 * 256 + 256) + (25 * 256 * 256 + 256) + (25 * 256 * 128 + 128)
    assert count("cnn_baseline") == convolutions + (128 * 28 * 28 + 1) * 328 + 329 * 192 + 193 * 10 == 35_445_522


def test_lenet_is_caffes():
    model = create_model("lenet")
    assert [tuple(p.shape) for p in model.parameters() if p.dim() > 1] == [
        (20, 1, 5, 5),
        (50, 20, 5, 5),
        (500, 50 * 4 * 4),
        (10, 500),
    ]
    assert count("lenet") == 431_080


def test_the_small_cnn_has_as_many_parameters_as_pcapsnet2_and_its_maps():
    assert count("cnn_small") == count("pcapsnet2") == 3888
    x, sizes = torch.rand(1, 1, 28, 28), []
    for layer in create_model("cnn_small").layers:
        x = layer(x)
        if isinstance(layer, torch.nn.Conv2d):
            sizes.append(x.shape[-1])
    assert sizes == [13, 11, 5, 3, 1]


@pytest.mark.parametrize(("name", "work"), [("lenet", 24 * 24 * 500 + 8 * 8 * 25_000 + 400_000 + 5000), ("cnn_small", 169 * 108 + 121 * 1080 + 25 * 900 + 9 * 900 + 900)])  # fmt: skip
def test_multiply_adds_are_counted_from_the_layers(name, work):
    assert create_model(name).multiply_adds() == work


@pytest.mark.parametrize(("name", "in_shape"), [("lenet", (3, 16, 41)), ("cnn_small", (3, 27, 63)), ("cnn_baseline", (2, 5, 7))])  # fmt: skip
def test_any_image_and_any_number_of_classes(name, in_shape):
    model = create_model(name, in_shape=in_shape, num_classes=3)
    assert model(torch.rand(2, *in_shape)).shape == (2, 3)


@pytest.mark.parametrize(("name", "smallest"), [("lenet", 16), ("cnn_small", 27)])
def test_too_small_an_image_is_told_the_smallest_size(name, smallest):
    with pytest.raises(ConfigError, match=rf"in_shape: .* at least {smallest}x{smallest} .* got {smallest - 1}x40"):
        create_model(name, in_shape=(1, smallest - 1, 40))


@pytest.mark.parametrize("name", ["cnn_small", "lenet"])
def test_images_of_another_size_are_refused(name):
    with pytest.raises(ConfigError, match=r"images: expected \[B, 1, 28, 28\], got \[2, 1, 32, 32\]"):
        create_model(name)(torch.rand(2, 1, 32, 32))


def test_images_are_standardised_by_the_network_itself():
    plain, standardised = (create_model("lenet", **options) for options in ({}, {"mean": (0.5,), "std": (2.0,)}))
    standardised.load_state_dict({**standardised.state_dict(), **plain.state_dict()})
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(standardised(images), plain((images - 0.5) / 2))


def test_scores_are_logits_of_any_sign():
    torch.manual_seed(0)
    scores = create_model("lenet")(torch.rand(20, 1, 28, 28))
    assert (scores < 0).any()
    assert (scores > 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_they_are_trained_by_cross_entropy_on_the_scores_themselves(name):
    recipe = RECIPES[get_entry(name).recipe]
    assert (recipe.loss, recipe.scale, recipe.model_options()) == ("cross_entropy", 1.0, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 1}, "num_classes: expected an int >= 2, got 1"),
        ({"in_shape": (28, 28)}, r"in_shape: .* got \(28, 28\)"),
        ({"init": "caffe"}, "lenet: has no option 'init'"),
        ({"pretrained": True}, "pretrained: there are no packaged weights for 'lenet'"),
    ],
)
def test_wrong_arguments_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        create_model("lenet", **options)
