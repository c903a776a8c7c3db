"""The graphs that the page runs: their numbers are PyTorch's, and their direction is FGSM's."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from purecaps.demo import site
from purecaps.demo.graphs import Direction, Reading, export_graphs
from purecaps.demo.site import NETWORKS
from purecaps.errors import ConfigError
from purecaps.evaluate.attacks import fgsm
from purecaps.evaluate.attacks.loss import default_loss
from purecaps.models import Layer, PCapsNet, create_model
from purecaps.quant import QuantisedPCapsNet

FOLDER = Path(site.__file__).parent / "networks"
MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
if MISSING and os.environ.get("CI") != "true":
    pytest.skip(f"needs {', '.join(MISSING)}: pip install onnx onnxscript onnxruntime", allow_module_level=True)


def weights_of(network: PCapsNet) -> list[Tensor]:
    return [block.conv.weight.detach().contiguous() for block in network.capsule_blocks()]


def run(path: Path, image: Tensor, weights: list[Tensor]) -> dict[str, Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    feeds = {"images": image, **{f"weight{index}": weight for index, weight in enumerate(weights, start=1)}}
    found = session.run(None, {name: value.numpy() for name, value in feeds.items()})
    names = [output.name for output in session.get_outputs()]
    return {name: torch.from_numpy(value) for name, value in zip(names, found, strict=True)}


def own_direction(network: PCapsNet, image: Tensor) -> Tensor:
    """By autograd: the sign of the loss's gradient, for the network's own answer."""
    asked = image.clone().requires_grad_()
    scores = network(asked)
    default_loss(network)(scores, scores.argmax(dim=1)).backward()
    return asked.grad.sign()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_packaged_graph_reads_digits_as_pytorch_does(digits, name):
    network = create_model(name, pretrained=True)
    for image in digits.test.images[[3, 8, 21]][:, None] / 255:
        found = run(FOLDER / f"{name}.onnx", image, weights_of(network))
        with torch.no_grad():
            maps = network.features(image)
            torch.testing.assert_close(found.pop("lengths"), network(image), rtol=0, atol=2e-6)
        assert list(found) == [f"layer{number}" for number in range(1, len(maps) + 1)]
        for got, expected in zip(found.values(), maps, strict=True):
            torch.testing.assert_close(got, expected.contiguous(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_packaged_graph_attacks_as_fgsm_does(digits, name):
    network = create_model(name, pretrained=True)
    for image in digits.test.images[[5, 13]][:, None] / 255:
        direction = run(FOLDER / f"{name}-direction.onnx", image, weights_of(network))["direction"]
        expected = fgsm(network, image, network(image).argmax(dim=1), 0.2)
        got = (image + 0.2 * direction).clamp(0, 1)
        # Where two libraries round a gradient of next to nothing to either side of zero, its sign may differ.
        assert ((got - expected).abs() > 1e-6).sum() <= 2


@pytest.mark.parametrize("name", NETWORKS)
def test_a_packaged_graph_in_integers_is_that_of_the_packaged_weights(digits, name):
    from purecaps.export.onnx_int8 import build_model

    network = QuantisedPCapsNet.from_package(name)
    packaged = (FOLDER / f"{name}-int8.onnx").read_bytes()
    built = build_model(network, capsules=True).SerializeToString(deterministic=True)
    assert packaged == built, "run tools/package_demo_graphs.py"
    images = digits.test.images[:7] / 255
    found = run(FOLDER / f"{name}-int8.onnx", images, [])
    assert torch.equal(found["scores"], network(images))
    in_float = create_model(name, pretrained=True)
    with torch.no_grad():
        maps = in_float.features(images)
    for number, expected in enumerate(maps, start=1):
        got = found[f"layer{number}"]
        assert got.shape == expected.shape
        # Weights and capsules are rounded to 8 bits in every layer before.
        assert (got - expected).abs().mean() < 0.02, f"layer {number}"
    lengths = found["layer5"].flatten(-3).norm(dim=-1).flatten(1)
    torch.testing.assert_close(lengths, found["lengths"], rtol=0, atol=1e-5)


ODD = [
    ([Layer(None, None, 3)], (1, 3, 3)),
    ([Layer(2, None, 6, stride=2), Layer(3, 2, 5), Layer(None, 5, 2)], (1, 13, 12)),
    ([Layer(2, None, 4, padding=1), Layer(None, 2, 3, stride=2, g=2)], (2, 5, 7)),
]


@pytest.mark.parametrize(("layers", "in_shape"), ODD, ids=range(len(ODD)))
def test_the_backward_pass_is_autograds(layers, in_shape):
    network = PCapsNet(layers, in_shape=in_shape, num_classes=4).double()
    network.reset_parameters(torch.Generator().manual_seed(5))
    image = torch.rand(1, *in_shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    image[..., : in_shape[2] // 2] = 0  # capsules of length zero are routine
    with torch.no_grad():
        got = Direction(network)(image, *weights_of(network))
    assert torch.equal(got, own_direction(network, image))
    assert got.unique().numel() > 1


def test_the_weights_are_the_ones_given_and_not_the_networks_own():
    network, other = create_model("pcapsnet1"), create_model("pcapsnet1", pretrained=True)
    image = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(7))
    with torch.no_grad():
        lengths, *maps = Reading(network.eval())(image, *weights_of(other))
        torch.testing.assert_close(lengths, other(image))
        direction = Direction(network)(image, *weights_of(other))
    assert len(maps) == 5
    assert torch.equal(direction, own_direction(other, image))


@pytest.mark.slow
def test_graphs_can_be_written_and_hold_no_weights(tmp_path):
    network = PCapsNet([Layer(None, None, 96, stride=2)], in_shape=(1, 5, 5), num_classes=40)
    reading, direction = tmp_path / "r.onnx", tmp_path / "d.onnx"
    export_graphs(network.eval(), "small", reading, direction)
    parameters = sum(weight.numel() for weight in network.parameters())
    assert reading.stat().st_size + direction.stat().st_size < parameters  # bytes
    image = torch.rand(1, 1, 5, 5, generator=torch.Generator().manual_seed(8))
    with torch.no_grad():
        torch.testing.assert_close(run(reading, image, weights_of(network))["lengths"], network(image))
    got = run(direction, image, weights_of(network))["direction"]
    assert torch.equal(got, own_direction(network, image))


def test_a_missing_package_is_one_clear_line(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(
        ConfigError, match=r"expected the package onnxscript, found none; pip install onnx onnxscript onnxruntime"
    ):
        export_graphs(create_model("pcapsnet1"), "pcapsnet1", tmp_path / "r.onnx", tmp_path / "d.onnx")
