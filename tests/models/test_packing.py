"""Networks that differ from the paper's in how capsules are packed, and plain ones of equal size or work."""

import statistics

import pytest
import torch

from purecaps import create_model, list_models
from purecaps.errors import UnknownNameError
from purecaps.models.packing import PACKINGS, packings
from purecaps.models.registry import get_entry

PACKED = [(base, packing) for base, networks in PACKINGS.items() for packing in networks]
SHAPES = {"scalar": (1, 1), "vector": (1, 1), "rows16": (1, 16), "g2": (2, 4), "g4": (4, 4)}  # (g, m)
WORK = {"cnn_small_work": "pcapsnet2", "cnn_medium_work": "pcapsnet3", "cnn_large_work": "pcapsnet0"}
SIZE = {"cnn_small": "pcapsnet2", "cnn_medium": "pcapsnet3", "cnn_large": "pcapsnet0"}


def count(name):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in create_model(name).parameters())


def work(name):
    with torch.device("meta"):
        return create_model(name).multiply_adds()


@pytest.mark.parametrize(("base", "packing"), PACKED)
def test_a_packed_network_has_the_parameters_and_maps_of_its_base(base, packing):
    name = f"{base}_{packing}"
    assert count(name) == count(base)
    features = create_model(name).features(torch.rand(2, 1, 28, 28))
    assert [feature.shape[2] for feature in features] == [13, 11, 5, 3, 1]
    assert {tuple(feature.shape[4:6]) for feature in features[1:]} == {SHAPES[packing]}
    capsules = [feature.shape[1] for feature in create_model(base).features(torch.rand(1, 1, 28, 28))]
    assert packing == "scalar" or [feature.shape[1] for feature in features] == capsules


@pytest.mark.parametrize("packing", PACKINGS["pcapsnet2"])
def test_no_network_of_as_many_parameters_has_more_even_sizes(packing):
    g, m = SHAPES[packing]
    layers = PACKINGS["pcapsnet2"][packing]
    if packing == "scalar":
        chosen = [layer.out for layer in layers[:4]]
        others = scalars(432)
    else:
        chosen = [layer.n for layer in layers[1:]] + [layers[-1].p]
        others = sizes(432, g, m)
    assert tuple(chosen) in others
    assert statistics.pvariance(chosen) == pytest.approx(min(map(statistics.pvariance, others)))


def scalars(total):
    """Channels of four inner maps with that many numbers at each kernel position, ten classes."""
    found = []
    for a in range(1, 40):
        for b in range(1, 40):
            for c in range(1, 40):
                d, left = divmod(total - a - a * b - b * c, c + 10)
                if d > 0 and not left:
                    found.append((a, b, c, d))
    return found


def sizes(total, g, m):
    """n of layers 2 to 5 and the last p, with one capsule at each position but ten at the last."""
    found = []
    for a in range(2, 40):
        for b in range(2, 40):
            for c in range(2, 40):
                for d in range(2, 40):
                    e, left = divmod(total - g * m * a - g * (a * b + b * c + c * d), g * 10 * d)
                    if e > 1 and not left:
                        found.append((a, b, c, d, e))
    return found


def test_all_packings_are_listed_with_what_they_cost():
    listed = packings("pcapsnet2")
    assert [each.packing for each in listed] == ["scalar", "vector", "matrix", "rows16", "g2", "g4"]
    assert {each.parameters for each in listed} == {3888}
    costs = {each.model: each.multiply_adds for each in listed}
    assert costs["pcapsnet2"] == work("pcapsnet2")
    assert costs["pcapsnet2_vector"] == 9 * (169 * 6 + 121 * 42 + 25 * 49 + 9 * 35 + 5 * 6 * 10)
    assert costs["pcapsnet2_g2"] == 9 * (169 * 24 + 4 * 2 * (121 * 12 + 25 * 16 + 9 * 16 + 160))


@pytest.mark.parametrize(("name", "base"), SIZE.items())
def test_plain_networks_of_equal_size(name, base):
    assert count(name) == count(base)


@pytest.mark.parametrize(("name", "base"), WORK.items())
def test_plain_networks_of_equal_work(name, base):
    assert work(name) == pytest.approx(work(base), rel=5e-4)
    assert f"{count(name):,} parameters" in get_entry(name).summary


COMPARISONS = [*WORK, "cnn_medium", "cnn_large", *(f"{base}_{packing}" for base, packing in PACKED)]


@pytest.mark.parametrize("name", COMPARISONS)
def test_every_comparison_has_a_gradient_for_every_parameter(name):
    model = create_model(name, num_classes=7)
    scores = model(torch.rand(3, 1, 28, 28))
    assert scores.shape == (3, 7)
    scores.sum().backward()
    assert all(p.grad.isfinite().all() and (p.grad != 0).any() for p in model.parameters())


def test_comparisons_are_listed_by_a_pattern_alone():
    assert not set(COMPARISONS) & set(list_models())
    assert set(COMPARISONS) <= set(list_models("*"))
    assert list_models("pcapsnet3_g*") == ["pcapsnet3_g2", "pcapsnet3_g4"]


def test_a_network_without_other_packings_is_refused_by_name():
    with pytest.raises(UnknownNameError, match=r"unknown network with other packings 'pcapsnet0': .*pcapsnet2"):
        packings("pcapsnet0")
