"""Networks as ONNX files: what onnxruntime computes from them is what PyTorch computes."""

import importlib.util
import json
import os
import sys
from dataclasses import replace

import pytest
import torch

from purecaps import data
from purecaps._version import __version__
from purecaps.data import Split
from purecaps.data.preprocess import Zca
from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.export import onnx as exporting
from purecaps.export.onnx import ExportError, export_onnx
from purecaps.models import Layer, ModelInfo, PCapsNet, create_model, list_models
from purecaps.models.registry import get_entry
from purecaps.train.zoo_recipes import ZOO_RECIPES

MISSING = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
if MISSING and os.environ.get("CI") != "true":
    pytest.skip(f"needs {', '.join(MISSING)}: pip install onnx onnxscript onnxruntime", allow_module_level=True)


def small(in_shape=(1, 9, 11), num_classes=3, *, layers=None, **options) -> TrainedModel:
    """An untrained network, of one layer unless told otherwise: quick to convert."""
    layers = layers or [Layer(None, None, 4, stride=2)]
    model = PCapsNet(layers, in_shape=in_shape, num_classes=num_classes, **options)
    model.reset_parameters(torch.Generator().manual_seed(1))
    names = tuple(f"class {number}" for number in range(num_classes))
    return TrainedModel(model.eval(), ModelInfo("small", in_shape, in_shape, num_classes, class_names=names))


def raw_images(count, shape, seed=5) -> torch.Tensor:
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def open_session(path):
    import onnxruntime

    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def run_file(path, images: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(open_session(path).run(["scores"], {"images": images.numpy()})[0])


def assert_only(folder, *names):
    assert sorted(path.name for path in folder.iterdir()) == sorted(names)


@pytest.fixture(scope="module")
def pcapsnet2(tmp_path_factory):
    """The packaged network's file and the report on it."""
    path = tmp_path_factory.mktemp("onnx") / "m.onnx"
    return path, export_onnx(TrainedModel.from_package("pcapsnet2"), path)


# Of the networks with routing the smallest: 256 images go through each twice, which takes minutes for the largest.
ROUTED = [name for name in list_models() if get_entry(name).recipe in ZOO_RECIPES and name != "efficient_capsnet"]
# The packaged one is below; cnn_baseline is a ConvNet as cnn_small is, with 35 million weights that take 20 seconds.
LEFT_OUT = ("pcapsnet2", "cnn_baseline", *ROUTED)


@pytest.mark.parametrize("name", [name for name in list_models() if name not in LEFT_OUT])
def test_every_registered_network_can_be_exported(name, tmp_path):
    entry = get_entry(name)
    model = create_model(name, num_classes=7).eval()
    info = ModelInfo(name, entry.in_shape, entry.in_shape, 7, class_names=tuple("abcdefg"))
    report = export_onnx(TrainedModel(model, info), tmp_path / "m.onnx")
    assert report.images == 256
    assert not report.real_images
    assert report.max_difference <= 1e-5
    assert open_session(report.path).get_outputs()[0].shape == ["batch", 7]


def test_a_network_that_onnx_has_no_operators_for_is_refused(tmp_path):
    class WithDigamma(torch.nn.Linear):  # as capsnet_vb has it, which takes long to convert
        in_shape, num_classes = (1, 4, 4), 10

        def forward(self, images):
            return super().forward(images.flatten(1)).exp().digamma()

    info = ModelInfo("capsnet_vb", (1, 4, 4), (1, 4, 4), 10)
    with pytest.raises(ConfigError, match=r"torch.onnx can convert, got capsnet_vb: .*digamma"):
        export_onnx(TrainedModel(WithDigamma(16, 10).eval(), info), tmp_path / "m.onnx")
    assert_only(tmp_path)


def test_the_file_is_described_as_it_is(pcapsnet2):
    import onnx

    path, report = pcapsnet2
    assert report.path == path
    assert report.bytes == path.stat().st_size < 40_000
    assert report.differing_predictions == 0
    assert_only(path.parent, "m.onnx")
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert {opset.domain: opset.version for opset in model.opset_import} == {"": report.opset}
    assert report.opset >= 18
    session = open_session(path)
    (images,), (scores,) = session.get_inputs(), session.get_outputs()
    assert (images.name, images.shape, images.type) == ("images", ["batch", 1, 28, 28], "tensor(float)")
    assert (scores.name, scores.shape, scores.type) == ("scores", ["batch", 10], "tensor(float)")


def test_the_file_carries_what_a_user_needs_to_know(pcapsnet2):
    info = TrainedModel.from_package("pcapsnet2").info
    meta = open_session(pcapsnet2[0]).get_modelmeta()
    assert meta.producer_name == "purecaps"
    told = dict(meta.custom_metadata_map)
    assert json.loads(told.pop("class_names")) == list(info.class_names)
    assert float(told.pop("pixel_scale")) == info.pixel_scale
    assert told == {
        "purecaps_version": __version__,
        "model": "pcapsnet2",
        "trained_on": "mnist",
        "test_error": f"{info.record['test_error']:g}",
        "input": "float, in [0, 1]",
    }


def test_the_file_says_nothing_of_the_machine_it_was_made_on(pcapsnet2):
    content = pcapsnet2[0].read_bytes()
    for word in (b".py", b"site-packages", b"torch.nn", str(pcapsnet2[0].parent).encode()):
        assert word not in content, word
    info = replace(small().info, trained_on="/home/somebody/birds")
    told = exporting.metadata(info, raw=False)
    assert told["trained_on"] == "birds"
    assert "test_error" not in told  # it is not known


@pytest.mark.parametrize("count", [1, 5, 63])
def test_any_batch_size_is_taken(pcapsnet2, count):
    images = torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(count))
    with torch.no_grad():
        expected = create_model("pcapsnet2", pretrained=True)(images)
    torch.testing.assert_close(run_file(pcapsnet2[0], images), expected, rtol=0, atol=1e-5)


def test_a_blank_image_scores_zero(pcapsnet2):
    assert torch.equal(run_file(pcapsnet2[0], torch.zeros(3, 1, 28, 28)), torch.zeros(3, 10))


@pytest.mark.parametrize("brightness", [1e-2, 1e-4, 1e-5, 1e-6, 1e-9])
def test_faint_images_keep_their_digits(pcapsnet2, brightness):
    images = torch.rand(20, 1, 28, 28, generator=torch.Generator().manual_seed(0)) * brightness
    with torch.no_grad():
        expected = create_model("pcapsnet2", pretrained=True).double()(images.double()).float()
    torch.testing.assert_close(run_file(pcapsnet2[0], images), expected, rtol=0, atol=2e-6 * float(expected.max()))


VARIANTS = {
    "max over positions, chunks of rows": small(
        layers=[Layer(2, None, 8), Layer(None, 4, 4, stride=2)], pool="max", squash_chunk=4
    ),
    "mean over positions, chunks across rows": small(
        (2, 9, 7), layers=[Layer(2, 1, 3), Layer(None, 3, 4)], squash_chunk=2
    ),
    "groups, standardised": small(
        (4, 7, 6),
        2,
        layers=[Layer(2, None, 4, g=2, padding=1), Layer(None, 2, 3, g=2, kernel=2)],
        mean=(0.5, 0.4, 0.3, 0.2),
        std=(0.2, 0.1, 0.3, 0.4),
    ),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_agree_with_the_reference(variant, tmp_path):
    trained = VARIANTS[variant]
    export_onnx(trained, tmp_path / "m.onnx")
    images = torch.rand(5, *trained.info.in_shape, generator=torch.Generator().manual_seed(2))
    for block in trained.model.capsule_blocks():
        assert block.conv.impl == "auto"
        block.conv.impl = "reference"
    with torch.no_grad():
        assert len(trained.model.capsules(images)[0, 0].flatten(0, 1)) > 1  # there is something to pool
        expected = trained.model(images)
    torch.testing.assert_close(run_file(tmp_path / "m.onnx", images), expected, rtol=0, atol=1e-5)


def test_preprocessing_takes_raw_images_and_crops_and_scales_them(tmp_path):
    trained = small((3, 8, 8), mean=(0.5, 0.4, 0.3), std=(0.2, 0.1, 0.3))
    info = replace(trained.info, image_shape=(3, 13, 12), augment=("crop:8,padding=1", "flip"), pixel_scale=1 / 256)
    trained = replace(trained, info=info)
    report = export_onnx(trained, tmp_path / "m.onnx", preprocessing=True)
    session = open_session(report.path)
    (images,) = session.get_inputs()
    assert (images.shape, images.type) == (["batch", 3, 13, 12], "tensor(uint8)")
    assert session.get_modelmeta().custom_metadata_map["input"] == "uint8, raw"
    raw = raw_images(7, info.image_shape)
    raw[0] = 0
    torch.testing.assert_close(run_file(report.path, raw), trained.scores(raw), rtol=0, atol=1e-5)


def test_a_fixed_batch_is_checked_on_all_images_too_and_the_callers_network_is_not_changed(tmp_path):
    trained = small(impl="reference")
    trained.model.double().train()
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    test = Split(raw_images(11, trained.info.image_shape), torch.zeros(11, dtype=torch.int64))
    report = export_onnx(trained, tmp_path / "m.onnx", batch=4, test=test)
    assert (report.images, report.real_images) == (11, True)
    assert open_session(report.path).get_inputs()[0].shape == [4, 1, 9, 11]
    assert trained.model.training
    assert all(block.conv.impl == "reference" for block in trained.model.capsule_blocks())
    assert all(parameter.requires_grad for parameter in trained.model.parameters())
    for name, value in trained.model.state_dict().items():
        assert value.dtype == torch.float64
        assert torch.equal(value, before[name])


class Off:
    """A session that gives the least likely class a score of 2 more."""

    def __init__(self, path):
        self.real = open_session(path)

    def run(self, names, feeds):
        scores = self.real.run(names, feeds)[0]
        scores[range(len(scores)), scores.argmin(axis=1)] += 2
        return [scores]


def test_a_file_that_differs_from_pytorch_is_not_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "open_session", Off)
    path = tmp_path / "m.onnx"
    path.write_text("the file before")
    with pytest.raises(ExportError, match=r"within 1e-05 .* largest difference of 2 and 256 other predictions of 256"):
        export_onnx(small(), path)
    assert path.read_text() == "the file before"
    assert_only(tmp_path, "m.onnx")


def test_a_wrong_preprocessing_in_the_graph_is_found(tmp_path, monkeypatch):
    def forward(self, images):
        return self.network(images.to(torch.float32) / 200)

    monkeypatch.setattr(exporting._FromRaw, "forward", forward)
    with pytest.raises(ExportError, match="expected the scores of PyTorch within 1e-05"):
        export_onnx(small(), tmp_path / "m.onnx", preprocessing=True)
    assert_only(tmp_path)


def test_a_file_that_onnxruntime_cannot_load_is_told(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(b"not a graph")
    with pytest.raises(ExportError, match=r"that onnxruntime \d[\d.]* can load, got: \S.*; nothing was written"):
        exporting.open_session(path)


def test_only_ties_may_be_decided_otherwise():
    tie = torch.tensor([[0.5, 0.5 + 4e-6, 0.1], [0.9, 0.2, 0.1]])
    difference, differing = exporting._compare(tie, tie + torch.tensor([[6e-6, 0, 0], [0, 0, 0]]), "m")
    assert difference == pytest.approx(6e-6, rel=0.02)
    assert differing == 1
    with pytest.raises(ExportError, match="1 other predictions of 2"):
        exporting._compare(tie, tie.flip(1), "m")
    with pytest.raises(ExportError, match="largest difference of nan"):
        exporting._compare(tie, tie * torch.tensor([1, 1, float("nan")]), "m")


def test_a_network_whose_own_scores_are_not_finite_is_refused():
    scores = torch.tensor([[0.5, float("nan")], [0.5, 0.1], [float("inf"), 0.1]])
    with pytest.raises(ExportError, match="m: expected finite scores, got NaN or infinity for 2 of 3 images"):
        exporting._compare(scores, scores, "m")


def test_whitening_is_refused_in_the_graph_and_left_to_the_caller_otherwise(tmp_path):
    trained = small((1, 5, 5))
    zca = Zca(torch.rand(25), torch.rand(25, 25) / 25)
    trained = TrainedModel(trained.model, replace(trained.info, preprocess="gcn_zca"), zca)
    with pytest.raises(ConfigError, match=r"preprocessing: .* got small, which needs whitened ones \(gcn_zca\)"):
        export_onnx(trained, tmp_path / "m.onnx", preprocessing=True)
    assert_only(tmp_path)
    export_onnx(trained, tmp_path / "m.onnx")
    raw = raw_images(3, (1, 5, 5))
    torch.testing.assert_close(
        run_file(tmp_path / "m.onnx", trained.inputs(raw)), trained.scores(raw), rtol=0, atol=1e-5
    )
    assert open_session(tmp_path / "m.onnx").get_modelmeta().custom_metadata_map["input"] == "float, whitened"


class Undecided(torch.nn.Module):
    """A network whose steps depend on what it sees, which a graph cannot say."""

    def forward(self, images):
        return images.flatten(1)[:, :3] if images.sum() > 1 else images.flatten(1)[:, 1:4]


def test_a_network_that_has_no_graph_is_refused(tmp_path):
    trained = replace(small(), model=Undecided())
    with pytest.raises(ConfigError, match=r"model: expected a network that torch.onnx can convert, got small: \S"):
        export_onnx(trained, tmp_path / "m.onnx")
    assert_only(tmp_path)


def test_images_of_another_kind_are_refused_before_anything_is_written(tmp_path):
    test = Split(raw_images(2, (1, 28, 28)), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ConfigError, match=r"expected uint8 \[N, 1, 9, 11\].* got torch.uint8 \[1, 1, 28, 28\]"):
        export_onnx(small(), tmp_path / "m.onnx", test=test)
    with pytest.raises(ConfigError, match="batch: expected None or an int >= 1, got 0"):
        export_onnx(small(), tmp_path / "m.onnx", batch=0)
    assert_only(tmp_path)


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_named_with_what_installs_it(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ConfigError, match=rf"expected the package {name}, found none; pip install onnx onnxscript onnxruntime"
    ):
        export_onnx(small(), tmp_path / "m.onnx")
    assert_only(tmp_path)


def test_an_onnxscript_too_old_for_torch_is_told(tmp_path, monkeypatch):
    def export(*args, **options):
        raise ModuleNotFoundError("No module named 'onnxscript.newer'")

    monkeypatch.setattr(torch.onnx, "export", export)
    with pytest.raises(ConfigError, match=r"that torch \d.* works with, got No module named 'onnxscript.newer'; pip"):
        export_onnx(small(), tmp_path / "m.onnx")
    assert_only(tmp_path)


@pytest.mark.net
def test_all_test_images_of_mnist_are_told_alike(tmp_path):
    trained = TrainedModel.from_package("pcapsnet2")
    test = data.load("mnist").test
    report = export_onnx(trained, tmp_path / "m.onnx", preprocessing=True, test=test)
    assert (report.images, report.real_images) == (10_000, True)
    assert report.max_difference < 2e-6
    assert report.differing_predictions == 0
