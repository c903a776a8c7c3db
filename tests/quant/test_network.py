"""Quantised networks: held against plain Python integers, and kept in files."""

import itertools
import json

import pytest
import torch

from purecaps.errors import CheckpointError, ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models import Layer, save_model
from purecaps.models.sizes import LayerSizes
from purecaps.quant import QuantisedPCapsNet, arithmetic, quantise
from purecaps.quant.layer import QuantisedLayer, Scaling
from quantised_cases import CASES, own, raw_images

cases = pytest.mark.parametrize("trained", CASES.values(), ids=CASES)


def divide(value: int, by: int) -> int:
    """Nearest, halves away from zero."""
    size = (abs(value) + by // 2) // by
    return size if value >= 0 else -size


def plain_fixed_point(layer: QuantisedLayer, u: torch.Tensor) -> torch.Tensor:
    """`QuantisedLayer.fixed_point` of one image as loops over Python's integers."""
    s, scaling = layer.sizes, layer.scaling
    weight, multiplier = layer.weight.tolist(), layer.multiplier.tolist()
    u = u.reshape(s.C, *s.in_size, s.g, s.m, s.n).tolist()
    out = torch.zeros(s.O, *s.out_size, s.g, s.m, s.p, dtype=torch.int64)
    for o, y, x, g, m, p in itertools.product(*map(range, out.shape)):
        total = 0
        for i, j, c, n in itertools.product(range(s.kernel[0]), range(s.kernel[1]), range(s.C), range(s.n)):
            row, column = y * s.stride[0] + i - s.padding[0], x * s.stride[1] + j - s.padding[1]
            if 0 <= row < s.in_size[0] and 0 <= column < s.in_size[1]:
                total += u[c][row][column][g][m][n] * weight[i][j][c][o][g][n][p]
        factor = multiplier[o][g][p] if total >= 0 else divide(multiplier[o][g][p] * scaling.slope, 2**15)
        out[o, y, x, g, m, p] = max(-arithmetic.LIMIT, min(arithmetic.LIMIT, divide(total * factor, 2**scaling.shift)))
    return out


@cases
def test_layers_are_sums_of_products_of_integers(trained):
    images = raw_images(trained, 3)
    network = quantise(trained, images)
    u = network.pixels(network.inputs(images[2:])).permute(0, 2, 3, 1)[:, None, :, :, None, None, :]
    for layer in network.capsule_layers():
        assert torch.equal(layer.fixed_point(u)[0], plain_fixed_point(layer, u[0]))
        u = layer(u, network.table.long())
        if layer is not network.capsule_layers()[-1]:
            assert int(u.min()) >= -layer.scaling.zero
            assert int(u.max()) <= 255 - layer.scaling.zero


@cases
def test_float_images_are_read_as_the_bytes_they_stand_for(trained):
    images = raw_images(trained)
    network = quantise(trained, images)
    ready = network.inputs(images)
    scores = network(ready)
    assert scores.dtype == torch.int32
    assert scores.shape == (len(images), trained.info.num_classes)
    assert torch.equal(network(ready.float() * trained.info.pixel_scale), scores)
    assert torch.equal(network(ready.double() * trained.info.pixel_scale), scores)
    assert torch.equal(network.scores(images), scores)


@cases
def test_a_file_gives_the_same_network_again(trained, tmp_path):
    images = raw_images(trained)
    network = quantise(trained, images)
    network.save(tmp_path / "n.safetensors")
    again = QuantisedPCapsNet.load(tmp_path / "n.safetensors")
    assert torch.equal(again.scores(images), network.scores(images))
    assert again.info == network.info
    assert (again.fraction, again.pool, again.pixels) == (network.fraction, network.pool, network.pixels)
    assert again.constant_bytes == network.constant_bytes


def test_blank_images_have_no_score():
    trained = own([Layer(2, None, 4), Layer(None, 4, 4, kernel=5)], (1, 7, 7))
    images = raw_images(trained)
    assert quantise(trained, images).scores(images[:1]).tolist() == [[0, 0, 0]]


def test_a_layer_of_zeros_gives_zeros():
    trained = own([Layer(1, None, 4), Layer(None, 4, 4, kernel=5)], (1, 7, 7))
    for block in trained.model.capsule_blocks():
        torch.nn.init.zeros_(block.conv.weight)
    assert quantise(trained, raw_images(trained)).scores(raw_images(trained)).unique().tolist() == [0]


def test_bytes_are_those_of_weights_multipliers_and_tables():
    network = quantise(TrainedModel.from_package("pcapsnet2"), torch.zeros(1, 1, 28, 28, dtype=torch.uint8))
    columns = 16 + 8 + 4 + 8 + 10 * 4
    assert network.constant_bytes == 3888 + 2 * columns + 2 * arithmetic.ENTRIES
    assert network.multiply_adds() == 214_416


def layer_of(weight: torch.Tensor, in_zero: int = 0, **changes) -> QuantisedLayer:
    n, p = weight.shape[-2:]
    sizes = LayerSizes((1, 1), (1, 1), 1, 1, 1, 1, n, p, (1, 1), (1, 1), (0, 0), p, 0.1)
    scaling = Scaling(**{"slope": 3277, "shift": 1, "gain": 20_000, "gain_shift": 20, "zero": 3, **changes})
    return QuantisedLayer(sizes, scaling, weight, torch.full((1, 1, p), 4, dtype=torch.int16), in_zero)


@pytest.mark.parametrize("in_zero", [0, 90, 200])
def test_no_input_makes_an_accumulator_larger_than_its_bound(in_zero):
    weight = torch.randint(-127, 128, (1, 1, 1, 1, 1, 37, 5), generator=torch.Generator().manual_seed(0))
    layer = layer_of(weight.to(torch.int8), in_zero)
    # The worst input for each column takes the end of the range that has its weight's sign, or the other one.
    columns = weight.reshape(37, 5)
    worst = torch.cat([torch.where(columns * sign > 0, 255 - in_zero, -in_zero).t() for sign in (1, -1)])
    found = int((worst @ columns).abs().max())
    assert found <= layer.accumulator_bound < 2 * found


def test_a_layer_whose_accumulators_could_overflow_is_refused():
    weight = torch.full((1, 1, 1, 1, 1, 70_000, 1), 127, dtype=torch.int8)
    with pytest.raises(ConfigError, match=r"accumulator bound from 0 to 2147483647, got 2266950000; use .* in float"):
        layer_of(weight)
    layer_of(weight[:, :, :, :, :, :60_000])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shift": 0}, "shift from 1 to 62, got 0"),
        ({"gain_shift": 63}, "gain_shift from 1 to 51, got 63"),
        ({"slope": 40_000}, "slope from 0 to 32768, got 40000"),
        ({"zero": 256}, "zero from 0 to 255, got 256"),
    ],
)
def test_numbers_that_the_arithmetic_cannot_take_are_refused(changes, message):
    with pytest.raises(ConfigError, match=f"layer 1 -> 1: expected {message}"):
        layer_of(torch.ones(1, 1, 1, 1, 1, 2, 3, dtype=torch.int8), **changes)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(2, 1, 9, 11), r"images: expected \[B, 1, 7, 7\], got .*9.*11"),
        (torch.zeros(2, 1, 7, 7, dtype=torch.int32), r"expected uint8, or float in \[0, 1\], got torch.int32"),
    ],
)
def test_images_of_another_kind_are_refused(images, message):
    trained = own([Layer(None, None, 4, kernel=7)], (1, 7, 7))
    with pytest.raises(ConfigError, match=message):
        quantise(trained, raw_images(trained))(images)


def test_raw_images_of_another_kind_are_refused():
    trained = CASES["a crop"]
    network = quantise(trained, raw_images(trained))
    with pytest.raises(ConfigError, match=r"expected uint8 \[N, 1, 13, 11\], .* got torch.uint8 \[1, 1, 8, 8\]"):
        network.scores(torch.zeros(1, 1, 8, 8, dtype=torch.uint8))


def test_a_file_of_another_kind_is_told(tmp_path):
    trained = TrainedModel.from_package("pcapsnet1")
    save_model(trained.model, tmp_path / "m.safetensors", trained.info)
    with pytest.raises(CheckpointError, match="expected a quantised file, got a model file"):
        QuantisedPCapsNet.load(tmp_path / "m.safetensors")


def test_a_file_that_lacks_a_part_is_told(tmp_path, monkeypatch):
    trained = CASES["one layer"]
    network = quantise(trained, raw_images(trained))
    monkeypatch.setattr(json, "dumps", lambda value, **options: json.JSONEncoder(**options).encode({"info": {}}))
    network.save(tmp_path / "n.safetensors")
    with pytest.raises(CheckpointError, match=r"n.safetensors: expected a quantised network, got 'pixels'"):
        QuantisedPCapsNet.load(tmp_path / "n.safetensors")


def test_packaged_networks_are_found_by_name_and_others_named():
    assert QuantisedPCapsNet.from_package("pcapsnet2").info.name == "pcapsnet2"
    with pytest.raises(ConfigError, match="no packaged 8-bit weights of 'pcapsnet4'; quantise it first"):
        QuantisedPCapsNet.from_package("pcapsnet4")
    with pytest.raises(KeyError, match="unknown model 'pcapsnet9'"):
        QuantisedPCapsNet.from_package("pcapsnet9")
