"""8-bit networks from the command line."""

from dataclasses import replace

import pytest
from typed import purecaps

from purecaps.evaluate.trained import TrainedModel
from purecaps.models import save_model
from purecaps.quant import QuantisedPCapsNet, quantise
from quantised_cases import raw_images


@pytest.fixture
def run(tmp_path, monkeypatch, digits_file):
    """The folder of a run on the small file of digits."""
    monkeypatch.chdir(tmp_path)
    trained = TrainedModel.from_package("pcapsnet1")
    save_model(trained.model, "run/model.safetensors", replace(trained.info, trained_on=str(digits_file)))
    return tmp_path / "run"


@pytest.mark.parametrize("options", [[], ["--qat", "--steps", 2, "--lr", 1e-4]], ids=["ptq", "qat"])
def test_a_runs_network_is_quantised_and_told(run, options, capsys):
    assert purecaps("quantise", "--checkpoint", run, "--out", "n.safetensors", "--device", "cpu", *options) == 0
    said = capsys.readouterr().out
    assert "40 test images: " in said
    assert (
        f"n.safetensors: {(run.parent / 'n.safetensors').stat().st_size:,} bytes, of which weights and tables 3,386"
        in said
    )
    network = QuantisedPCapsNet.load("n.safetensors")
    assert network.info.record["aware_steps"] == (2 if options else 0)
    errors = [f"{network.info.record[name]:.2f} %" for name in ("float_test_error", "test_error")]
    assert f"test error: {errors[0]} in float, {errors[1]} in 8-bit integers" in said


@pytest.mark.parametrize("name", ["--steps", "--lr"])
def test_options_of_training_need_training(run, name, capsys):
    assert purecaps("quantise", "--checkpoint", run, "--out", "n.safetensors", name, 5) == 1
    assert f"{name}: expected it with --qat only, got 5 without; add --qat" in capsys.readouterr().err
    assert purecaps("quantise", "--checkpoint", run, "--out", "n.safetensors", "--qat", name, 0) == 1
    assert f"{name}: expected a number above 0, got 0" in capsys.readouterr().err
    assert not (run.parent / "n.safetensors").exists()


def test_c_in_integers_from_the_package_from_a_run_and_from_a_file(run, capsys):
    assert purecaps("export", "c", "--model", "pcapsnet2", "--pretrained", "--int8", "--out", "package") == 0
    assert "constants 4,330 bytes, static memory 4,472 bytes, 214,416 multiply-adds" in capsys.readouterr().out
    assert purecaps("export", "c", "--checkpoint", run, "--int8", "--out", "run_c") == 0
    said = capsys.readouterr()
    assert "quantising, with 144 training images" in said.err
    assert purecaps("quantise", "--checkpoint", run, "--out", "n.safetensors") == 0
    assert purecaps("export", "c", "--checkpoint", "n.safetensors", "--int8", "--out", "file_c") == 0
    names = ("pcapsnet1_int8.c", "pcapsnet1_int8.h")
    for name in names:
        assert (run.parent / "run_c" / name).read_text() == (run.parent / "file_c" / name).read_text()


def test_onnx_in_integers(run, capsys):
    pytest.importorskip("onnxruntime")
    assert purecaps("export", "onnx", "--checkpoint", run, "--int8", "--preprocessing", "--out", "n.onnx") == 0
    assert "40 test images: the same integers as PyTorch" in capsys.readouterr().out
    assert (run.parent / "n.onnx").stat().st_size < 20_000


@pytest.mark.parametrize(
    "words",
    [
        ["export", "c", "--out", "c", "--checkpoint"],
        ["eval", "--checkpoint"],
        ["predict", "digit.png", "--checkpoint"],
        ["attack", "--model", "pcapsnet2", "--source"],
    ],
    ids=" ".join,
)
def test_a_quantised_file_is_told_with_what_takes_it(run, words, capsys):
    trained = TrainedModel.from_package("pcapsnet1")
    quantise(trained, raw_images(trained)).save("n.safetensors")
    assert purecaps(*words, "n.safetensors") == 1
    said = capsys.readouterr().err
    assert "n.safetensors: expected a model file, got a quantised file, of 8-bit integers: " in said
    assert "`purecaps export c --int8` and `purecaps export onnx --int8` take it" in said
    assert len(said.splitlines()) == 1


def test_two_networks_at_once_are_refused(run, capsys):
    assert purecaps("export", "c", "--model", "pcapsnet2", "--checkpoint", run, "--int8", "--out", "c") == 1
    assert "expected either --model or --checkpoint, got both" in capsys.readouterr().err


def test_a_network_without_packaged_integers_is_named(run, capsys):
    assert purecaps("export", "c", "--model", "pcapsnet4", "--int8", "--out", "c") == 1
    assert "no packaged 8-bit weights of 'pcapsnet4'; quantise it first" in capsys.readouterr().err


def test_moved_images_are_asked_for_and_taken_by_data(run, digits_file, capsys):
    digits_file.rename("moved.npz")
    words = ["export", "c", "--checkpoint", run, "--int8", "--out", "c"]
    assert purecaps(*words) == 1
    assert capsys.readouterr().err == (
        f"purecaps: error: --data: expected the images that pcapsnet1 was trained on in {digits_file}, found none "
        "there; give --data with where they are now\n"
    )
    assert purecaps(*words, "--data", "moved.npz") == 0
    assert purecaps("eval", "--checkpoint", run, "--device", "cpu") == 1
    assert "give --data with where they are now" in capsys.readouterr().err


def test_onnx_takes_moved_images_too(run, digits_file, capsys):
    pytest.importorskip("onnxruntime")
    digits_file.rename("moved.npz")
    words = ["export", "onnx", "--checkpoint", run, "--out", "n.onnx", "--data"]
    for more in ([], ["--int8"]):
        assert purecaps(*words, "moved.npz", *more) == 0
        assert "40 test images: " in capsys.readouterr().out
    assert purecaps(*words, "no/where.npz") == 1
    assert "no/where.npz: expected a folder of images or a file of arrays" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--int8"]], ids=["float", "packaged integers"])
def test_images_that_c_would_not_use_are_refused(run, digits_file, capsys, words):
    assert purecaps("export", "c", "--model", "pcapsnet2", "--out", "c", "--data", digits_file, *words) == 1
    assert f"--data: expected it only with --int8 and a run's network, which images quantise, got '{digits_file}'" in capsys.readouterr().err  # fmt: skip
