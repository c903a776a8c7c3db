"""Quantised networks as ONNX: onnxruntime gives the same integers."""

import importlib.util
import json
import os

import pytest
import torch

from purecaps import data
from purecaps.data import Split
from purecaps.errors import ConfigError
from purecaps.export import onnx_int8 as exporting
from purecaps.export.onnx import ExportError
from purecaps.export.onnx_int8 import export_onnx_int8
from purecaps.models import Layer
from purecaps.quant import QuantisedPCapsNet, quantise
from quantised_cases import CASES, own, raw_images

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
if MISSING and os.environ.get("CI") != "true":
    pytest.skip(f"needs {', '.join(MISSING)}: pip install onnx onnxscript onnxruntime", allow_module_level=True)


def open_session(path):
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def split_of(images):
    return Split(images, torch.zeros(len(images), dtype=torch.int64))


@pytest.mark.parametrize("preprocessing", [False, True])
@pytest.mark.parametrize("trained", CASES.values(), ids=CASES)
def test_any_p_capsnet_gives_the_integers_of_python(trained, preprocessing, tmp_path):
    images = raw_images(trained)
    network = quantise(trained, images)
    path = tmp_path / "n.onnx"
    report = export_onnx_int8(network, path, preprocessing=preprocessing, test=split_of(images))
    assert (report.images, report.real_images, report.bytes) == (len(images), True, path.stat().st_size)
    ready = images if preprocessing else network.inputs(images).float() * trained.info.pixel_scale
    scores, lengths = open_session(path).run(["scores", "lengths"], {"images": ready[4:].numpy()})  # another batch
    expected = network.scores(images[4:])
    assert torch.equal(torch.from_numpy(scores), expected)
    torch.testing.assert_close(torch.from_numpy(lengths).double(), network.length_of(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("factor", [1e-3, 5.0, 60.0])
def test_capsules_outside_the_table_are_squashed_alike(factor, tmp_path):
    trained = own([Layer(2, None, 6), Layer(2, 3, 4), Layer(None, 4, 4, kernel=3)], (1, 7, 7))
    torch.nn.init.normal_(trained.model.capsule_blocks()[0].conv.weight, std=factor)
    images = raw_images(trained, 40)
    export_onnx_int8(quantise(trained, images), tmp_path / "n.onnx", test=split_of(images))


def test_pixels_between_two_bytes_are_rounded_alike(tmp_path):
    network = QuantisedPCapsNet.from_package("pcapsnet1")
    export_onnx_int8(network, tmp_path / "n.onnx")
    images = torch.rand(30, 1, 28, 28, generator=torch.Generator().manual_seed(0)) * 1.2 - 0.1
    images[0] = torch.arange(784).view(1, 28, 28) / 2 / 255  # every half, too
    (scores,) = open_session(tmp_path / "n.onnx").run(["scores"], {"images": images.numpy()})
    assert torch.equal(torch.from_numpy(scores), network(images))


@pytest.fixture(scope="module")
def pcapsnet2(tmp_path_factory):
    path = tmp_path_factory.mktemp("onnx") / "n.onnx"
    return path, export_onnx_int8(QuantisedPCapsNet.from_package("pcapsnet2"), path, preprocessing=True)


def test_digits_are_read_as_in_python(pcapsnet2, digits):
    images = torch.cat([digits.train.images, digits.test.images])
    (scores,) = open_session(pcapsnet2[0]).run(["scores"], {"images": images.numpy()})
    assert torch.equal(torch.from_numpy(scores), QuantisedPCapsNet.from_package("pcapsnet2").scores(images))


def test_weights_are_stored_as_bytes(pcapsnet2):
    import onnx

    path, report = pcapsnet2
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    kinds = [each.data_type for each in model.graph.initializer]
    assert kinds.count(onnx.TensorProto.INT8) == 5
    assert report.bytes == path.stat().st_size < 20_000
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": report.opset}


def test_the_file_is_described_as_it_is(pcapsnet2):
    session = open_session(pcapsnet2[0])
    (images,) = session.get_inputs()
    assert (images.name, images.shape, images.type) == ("images", ["batch", 1, 28, 28], "tensor(uint8)")
    outputs = [(each.name, each.shape, each.type) for each in session.get_outputs()]
    assert outputs == [("scores", ["batch", 10], "tensor(int32)"), ("lengths", ["batch", 10], "tensor(float)")]
    told = session.get_modelmeta().custom_metadata_map
    info = QuantisedPCapsNet.from_package("pcapsnet2").info
    assert json.loads(told["class_names"]) == list(info.class_names)
    assert (told["model"], told["arithmetic"], told["input"]) == ("pcapsnet2", "int8", "uint8, raw")
    assert told["test_error"] == f"{info.record['test_error']:g}"  # of the integers, not of the network in float


def test_a_file_that_gives_other_integers_is_not_left_behind(tmp_path, monkeypatch):
    class Off:
        def __init__(self, path):
            self.real = open_session(path)

        def run(self, names, feeds):
            scores = self.real.run(names, feeds)[0]
            scores[1, 0] += 1
            return [scores]

    monkeypatch.setattr(exporting, "open_session", Off)
    path = tmp_path / "n.onnx"
    path.write_text("the file before")
    trained = CASES["one layer"]
    with pytest.raises(ExportError, match="bit for bit, got others for 1 of 9 images; nothing was written"):
        export_onnx_int8(quantise(trained, raw_images(trained)), path, test=split_of(raw_images(trained)))
    assert path.read_text() == "the file before"
    assert [each.name for each in tmp_path.iterdir()] == ["n.onnx"]


def test_a_network_that_float32_cannot_hold_exactly_is_refused(tmp_path):
    trained = own([Layer(None, None, 1, kernel=40)], (1, 40, 40), 2)
    torch.nn.init.ones_(trained.model.capsule_blocks()[0].conv.weight)
    network = quantise(trained, raw_images(trained))
    with pytest.raises(ConfigError, match=r"below 2\^24, .* got up to 51,816,000 in layer 0; export it to C, or"):
        export_onnx_int8(network, tmp_path / "n.onnx")
    assert not list(tmp_path.iterdir())


def test_images_of_another_kind_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ConfigError, match=r"expected uint8 \[N, 1, 28, 28\], .* got torch.uint8 \[1, 1, 9, 9\]"):
        export_onnx_int8(
            QuantisedPCapsNet.from_package("pcapsnet1"),
            tmp_path / "n.onnx",
            test=split_of(torch.zeros(3, 1, 9, 9, dtype=torch.uint8)),
        )
    assert not list(tmp_path.iterdir())


@pytest.mark.net
@pytest.mark.slow
def test_all_test_images_of_mnist_give_the_integers_of_python(tmp_path):
    test = data.load("mnist").test
    report = export_onnx_int8(QuantisedPCapsNet.from_package("pcapsnet2"), tmp_path / "n.onnx", test=test)
    assert (report.images, report.real_images) == (10_000, True)
