"""From float to integers: what comes out does what went in, about, and nothing but training images are read."""

from dataclasses import replace

import pytest
import torch

from purecaps.data import Dataset, Split
from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models import Layer, ModelInfo
from purecaps.quant import QuantisedPCapsNet, calibration_images, quantise
from purecaps.quant.calibrate import observe
from purecaps.quant.convert import output_scale, quantise_kernel
from purecaps.train.prepare import hold_out
from quantised_cases import CASES, own, raw_images

PACKAGED = ["pcapsnet0", "pcapsnet1", "pcapsnet2", "pcapsnet3"]


@pytest.mark.parametrize("trained", CASES.values(), ids=CASES)
def test_lengths_are_about_those_in_float(trained):
    images = raw_images(trained, 40)
    network = quantise(trained, images)
    got, expected = network.length_of(network.scores(images)), trained.scores(images).double()
    assert float((got - expected).abs().max()) < 0.02
    assert float((got - expected).abs().mean()) < 0.003


@pytest.mark.parametrize("name", ["pcapsnet1", "pcapsnet2", "pcapsnet3"])
def test_packaged_networks_read_digits_as_in_float(name, digits):
    trained, network = TrainedModel.from_package(name), QuantisedPCapsNet.from_package(name)
    images = torch.cat([digits.train.images, digits.test.images])
    scores, lengths = network.scores(images), trained.scores(images)
    assert int((scores.argmax(dim=1) != lengths.argmax(dim=1)).sum()) <= 1
    assert float((network.length_of(scores) - lengths).abs().mean()) < 0.005


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_integers_are_those_of_the_packaged_weights(name):
    blocks = TrainedModel.from_package(name).model.capsule_blocks()
    layers = QuantisedPCapsNet.from_package(name).capsule_layers()
    for block, layer in zip(blocks, layers, strict=True):
        expected, _ = quantise_kernel(block.conv.weight.detach().double())
        assert torch.equal(layer.weight, expected.to(torch.int8)), f"{name}: quantise the packaged weights again"


@pytest.mark.parametrize("name", PACKAGED)
def test_packaged_integers_lose_little(name):
    record = QuantisedPCapsNet.from_package(name).info.record
    assert record["calibration_images"] == 1000
    assert record["test_error"] - record["float_test_error"] <= (0.05 if name == "pcapsnet0" else 0.10)


def test_each_column_uses_the_whole_range():
    w = torch.randn(3, 3, 2, 4, 2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    w[..., 1] *= 1e-3
    w[:, :, :, 2, 1, :, 0] = 0
    integers, scale = quantise_kernel(w)
    assert scale.shape == (1, 1, 1, 4, 2, 1, 3)
    largest = integers.abs().amax(dim=(0, 1, 2, 5))
    assert int(largest[2, 1, 0]) == 0
    assert largest.flatten().unique().tolist() == [0, 127]
    assert bool(((integers * scale - w).abs() <= scale / 2 + 1e-12).all())


@pytest.mark.parametrize(("low", "high"), [(-0.2, 0.8), (0.0, 1.0), (-1.0, 0.0), (0.0, 0.0)])
def test_zero_is_one_of_the_256_numbers(low, high):
    step, zero = output_scale(low, high)
    assert 0 <= zero <= 255
    assert -zero * step <= low + step / 2
    assert (255 - zero) * step >= high - step / 2


def test_standardised_pixels_are_rounded_once():
    trained = CASES["standardised colours, padded"]
    network = quantise(trained, raw_images(trained))
    every = torch.arange(256, dtype=torch.uint8).view(256, 1, 1, 1).expand(-1, 3, 8, 8)
    mean, std = trained.model.mean.double(), trained.model.std.double()
    exact = (every.double() / 255 - mean) / std
    step = (exact.max() - exact.min()) / 255
    assert float((network.pixels(every) * step - exact).abs().max()) <= 0.501 * float(step)


def test_plain_pixels_are_taken_as_they_are():
    trained = CASES["a crop"]
    every = torch.arange(256, dtype=torch.uint8).view(4, 1, 8, 8)
    assert torch.equal(quantise(trained, raw_images(trained)).pixels(every), every.long())


def test_ranges_are_those_of_the_layers(digits):
    trained = TrainedModel.from_package("pcapsnet1")
    images = digits.train.images[:30]
    ranges = observe(trained, images)
    with torch.inference_mode():
        maps = trained.model.features(trained.inputs(images))
    for (low, high), y in zip(ranges.outputs, maps[:-1], strict=True):
        assert low == pytest.approx(float(y.min()), abs=1e-6)
        assert high == pytest.approx(float(y.max()), abs=1e-6)
    longest = float(trained.scores(images).max())
    assert 1 - torch.exp(torch.tensor(-ranges.longest)) == pytest.approx(longest, abs=1e-6)


def test_neither_held_out_nor_test_images_are_calibrated_on():
    def numbered(first, count):
        images = torch.arange(first, first + count).view(-1, 1, 1, 1).expand(-1, 1, 5, 5).to(torch.uint8)
        return Split(images.contiguous(), torch.arange(count) % 2)

    dataset = Dataset("numbers", numbered(0, 200), numbered(200, 50), ("a", "b"))
    kept, held = hold_out(dataset.train, 20)
    for count in (7, 1000):
        chosen = calibration_images(dataset, count)[:, 0, 0, 0].tolist()
        assert len(chosen) == min(count, 180)
        assert len(set(chosen)) == len(chosen)
        assert set(chosen) <= set(kept.images[:, 0, 0, 0].tolist())
        assert not set(chosen) & set(held.images[:, 0, 0, 0].tolist())
    with pytest.raises(ConfigError, match="count: expected an int >= 1, got 0"):
        calibration_images(dataset, 0)


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        (
            TrainedModel(torch.nn.Linear(1, 1), ModelInfo("lenet", (1, 4, 4), (1, 4, 4), 10)),
            "expected a P-CapsNet, got lenet; export it to ONNX in float",
        ),
        (
            replace(CASES["one layer"], info=replace(CASES["one layer"].info, preprocess="gcn_zca")),
            'got one of whitened images, which are not 8-bit; train it with preprocess "standardise"',
        ),
        (
            replace(CASES["one layer"], info=replace(CASES["one layer"].info, augment=("flip", "standardise"))),
            "expected one that takes images as they are, got one trained with flip, standardise",
        ),
        (own([Layer(None, None, 2)], (1, 4, 4), slope=1.5), "slopes of leaky ReLU up to 1, got 1.5 in layer 0"),
    ],
)
def test_what_cannot_be_quantised_is_refused(trained, message):
    with pytest.raises(ConfigError, match=message):
        quantise(trained, torch.zeros(1, 1, 4, 4, dtype=torch.uint8))


def test_a_calibration_that_says_nothing_is_refused():
    trained = CASES["one layer"]
    with pytest.raises(ConfigError, match="images: expected at least one calibration image, got none"):
        quantise(trained, torch.zeros(0, 1, 4, 4, dtype=torch.uint8))
    broken = own([Layer(1, None, 2), Layer(None, 2, 2, kernel=2)], (1, 4, 4))
    torch.nn.init.constant_(broken.model.capsule_blocks()[0].conv.weight, float("nan"))
    with pytest.raises(ConfigError, match="expected finite numbers on the calibration images"):
        quantise(broken, raw_images(broken))


def test_the_network_in_float_is_not_changed(digits):
    trained = TrainedModel.from_package("pcapsnet1")
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    network = quantise(trained, digits.train.images[:3])
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.model.state_dict().items())
    assert "test_error" in trained.info.record
    assert "test_error" not in network.info.record  # it is the other network's
