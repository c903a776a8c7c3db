"""`purecaps eval` and the others that use a trained network."""

import json
import re

import pytest
import torch
from PIL import Image
from typed import QUICK, purecaps

from purecaps.models import ModelInfo, create_model, save_model


def test_a_trained_network_is_evaluated_and_used(trained, digits, capsys):
    capsys.readouterr()
    assert purecaps("eval", "--checkpoint", trained, "--out", "evaluation", "--device", "cpu") == 0
    text = capsys.readouterr().out
    error = json.loads((trained / "result.json").read_text())["test_error"]
    assert f"test error: {error:.2f} %" in text
    assert {path.name for path in (trained.parent / "evaluation").iterdir()} == {
        "confusion.png",
        "worst.png",
        "result.json",
    }
    Image.fromarray(digits.test.images[0, 0].numpy()).save("digit.png")
    assert purecaps("predict", "digit.png", "--checkpoint", trained) == 0
    assert len(re.findall(r"^\d +0\.\d{4}", capsys.readouterr().out, re.MULTILINE)) == 10


def test_a_test_set_that_takes_long_to_read_is_counted(trained, capsys, monkeypatch):
    monkeypatch.setattr("purecaps.cli.support.SECONDS_BETWEEN_LINES", 0)
    capsys.readouterr()
    assert purecaps("eval", "--checkpoint", trained, "--device", "cpu") == 0
    assert capsys.readouterr().err == "images: 40 of 40\n"
    assert purecaps("train", "--out", trained, "--resume", "--device", "cpu") == 0
    assert "reading the test set\nimages: 40 of 40\ndrawing" in capsys.readouterr().err


def test_a_plain_network_is_trained_and_used_but_not_written_as_c(here, digits_file, digits, capsys):
    assert purecaps("train", "--model", "lenet", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK) == 0
    config = json.loads((here / "run" / "config.json").read_text())
    assert (config["recipe_name"], config["recipe"]["scale"]) == ("cnn", 1.0)
    Image.fromarray(digits.test.images[0, 0].numpy()).save("digit.png")
    capsys.readouterr()
    assert purecaps("predict", "digit.png", "--checkpoint", "run", "--device", "cpu") == 0
    text = capsys.readouterr().out
    assert "probability" in text
    assert sum(float(found) for found in re.findall(r"^\d +(\d\.\d{4})", text, re.MULTILINE)) == pytest.approx(
        1, abs=1e-3
    )
    assert purecaps("export", "c", "--checkpoint", "run", "--out", "c") == 1
    assert "model: expected a P-CapsNet, got lenet; export it to ONNX instead" in capsys.readouterr().err
    assert not (here / "c").exists()


def test_a_checkpoint_that_hides_a_pickle_is_refused(here, capsys):
    torch.save({"weight": torch.zeros(2)}, "weights.safetensors")
    assert purecaps("eval", "--checkpoint", "weights.safetensors") == 1
    assert "refused: this is a pickle" in capsys.readouterr().err


def test_a_network_described_by_hand_is_used_with_data_that_the_user_names(here, digits, digits_file, capsys):
    info = ModelInfo("pcapsnet1", (1, 28, 28), (1, 28, 28), 10)
    save_model(create_model("pcapsnet1"), "m.safetensors", info)
    Image.fromarray(digits.test.images[0, 0].numpy()).save("digit.png")
    assert purecaps("predict", "digit.png", "--checkpoint", "m.safetensors") == 0
    assert purecaps("eval", "--checkpoint", "m.safetensors", "--data", digits_file, "--device", "cpu") == 0
    capsys.readouterr()
    for verb in (["eval"], ["attack"], ["quantise", "--out", "q.safetensors"]):
        assert purecaps(*verb, "--checkpoint", "m.safetensors", "--device", "cpu") == 1
        told = capsys.readouterr().err
        assert re.search(r"--data: expected .* what it was trained on, got none; give --data", told)
        assert len(told.splitlines()) == 1
    assert purecaps("export", "c", "--checkpoint", "m.safetensors", "--out", "c") == 0
    assert '"8",\n    "9"\n' in (here / "c" / "pcapsnet1.c").read_text()


def test_a_set_with_other_classes_is_refused(trained, two_classes, capsys):
    assert purecaps("eval", "--checkpoint", trained, "--data", "two.npz") == 1
    assert "--data: expected the classes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in capsys.readouterr().err


def test_a_network_is_written_as_c(here, capsys):
    assert purecaps("export", "c", "--model", "pcapsnet2", "--pretrained", "--out", "c") == 0
    assert {path.name for path in (here / "c").iterdir()} == {"pcapsnet2.c", "pcapsnet2.h"}
    assert "constants 15,552 bytes" in capsys.readouterr().out


@pytest.mark.parametrize("more", [[], ["--int8"]])
def test_c_files_are_called_as_asked(here, more, capsys):
    assert purecaps("export", "c", "--model", "pcapsnet2", "--name", "digits", "--out", "c", *more) == 0
    assert {path.name for path in (here / "c").iterdir()} == {"digits.c", "digits.h"}
    assert purecaps("export", "c", "--model", "pcapsnet2", "--name", "2 digits", "--out", "d", *more) == 1
    assert "name: expected letters, digits and underscores" in capsys.readouterr().err
    assert not (here / "d").exists()


TAKEN = "neither --model nor --checkpoint given: taking the packaged pcapsnet2\n"


@pytest.mark.parametrize(
    "verb",
    [
        ["eval", "--data", "digits.npz"],
        ["predict", "digit.png"],
        ["attack", "--data", "digits.npz", "--eps", "0.1", "--limit", "4"],
        ["quantise", "--data", "digits.npz", "--out", "q.safetensors"],
        ["export", "c", "--out", "c"],
        ["export", "c", "--int8", "--out", "d"],
    ],
    ids=" ".join,
)
def test_a_verb_says_which_network_it_took_where_none_was_named(here, digits, digits_file, capsys, verb):
    Image.fromarray(digits.test.images[0, 0].numpy()).save("digit.png")
    assert purecaps(*verb, "--device", "cpu") == 0
    assert capsys.readouterr().err.startswith(TAKEN)
    assert purecaps(*verb, "--model", "pcapsnet2", "--device", "cpu") == 0
    assert TAKEN not in capsys.readouterr().err


def test_help_states_the_network_that_is_taken(capsys):
    for verb in (["train"], ["eval"], ["export", "onnx"]):
        assert purecaps(*verb, "--help") == 0
        assert re.search(r"--model .*pcapsnet2", capsys.readouterr().out.replace("\n", " "))
