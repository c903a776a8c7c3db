"""`purecaps attack`, as a user types it."""

import json
import re

import numpy as np
import pytest
from PIL import Image
from typed import purecaps

QUICK = ["--steps", "6", "--batch-size", "16", "--val-size", "20", "--log-every", "6", "--device", "cpu"]
METHODS = {
    "fgsm": [],
    "pgd": ["--steps", "2", "--restarts", "2"],
    "uap": ["--steps", "3", "--aim", "any"],
    "noise": [],
}


@pytest.mark.parametrize(("method", "options"), METHODS.items())
def test_it_prints_a_row_for_each_eps_and_writes_numbers_and_a_picture(here, digits_file, capsys, method, options):
    words = ["--model", "pcapsnet2", "--pretrained", "--data", digits_file, "--method", method, "--eps", "0.1,0.3"]
    assert purecaps("attack", *words, *options, "--out", "found", "--limit", "30", "--device", "cpu") == 0
    said = capsys.readouterr()
    rows = re.findall(r"^ *(clean|[\d.]+) +(\d+\.\d\d) +(\d+\.\d\d) to (\d+\.\d\d) +(\d+) +30 ", said.out, re.MULTILINE)
    assert [row[0] for row in rows] == ["clean", "0.1", "0.3"]
    assert ("random signs" if method == "noise" else "cross-entropy of the scores times 20") in said.err
    found = json.loads((here / "found" / "attack.json").read_text())
    points = [found["clean"], *found["points"]]
    assert [f"{point['accuracy']:.2f}" for point in points] == [row[1] for row in rows]
    assert [str(point["correct"]) for point in points] == [row[4] for row in rows]
    assert all(point["interval"][0] <= point["accuracy"] <= point["interval"][1] for point in points)
    assert (found["model"], found["source"], found["method"], found["n"]) == ("pcapsnet2", None, method, 30)
    assert {"loss", "steps", "seed", "command", "versions"} <= found.keys()
    assert said.out.endswith(f"accuracy: {rows[0][1]} % clean, {rows[2][1]} % at eps 0.3\n")
    with Image.open(here / "found" / "attack.png") as picture:
        assert picture.width > 500
    assert {path.name for path in here.iterdir()} == {"found", "digits.npz"}


@pytest.mark.parametrize(("method", "options"), METHODS.items())
def test_an_eps_given_twice_is_measured_once(here, digits_file, capsys, method, options):
    words = ["--data", digits_file, "--method", method, "--eps", "0.1,0.3,0.10", *options, "--limit", "5"]
    assert purecaps("attack", *words, "--device", "cpu") == 0
    said = capsys.readouterr().out
    rows = re.findall(r"^ *([\d.]+) +(\d+\.\d\d) +\d+\.\d\d to ", said, re.MULTILINE)
    assert [row[0] for row in rows] == ["0.1", "0.3"]
    assert said.endswith(f"{rows[1][1]} % at eps 0.3\n")


def test_the_same_seed_gives_the_same_numbers(here, digits_file, capsys):
    words = ["attack", "--data", digits_file, "--method", "pgd", "--steps", "1", "--eps", "0.05,0.1", "--device", "cpu"]
    tables = []
    for seed in (3, 3):
        assert purecaps(*words, "--seed", seed) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]


def test_a_plain_networks_gradients_attack_a_capsule_network(here, digits_file, capsys):
    assert purecaps("train", "--model", "lenet", "--data", digits_file, "--out", "lenet", *QUICK) == 0
    words = [
        "attack",
        "--model",
        "pcapsnet2",
        "--data",
        digits_file,
        "--eps",
        "0.2",
        "--device",
        "cpu",
        "--out",
        "black",
    ]
    capsys.readouterr()
    assert purecaps(*words, "--source", "lenet") == 0
    said = capsys.readouterr().err
    assert "fgsm by the gradients of lenet, cross-entropy of the scores\n" in said
    assert json.loads((here / "black" / "attack.json").read_text())["source"] == "lenet"
    assert purecaps("attack", "--checkpoint", "lenet", "--source", "pcapsnet3", "--eps", "0.2", "--device", "cpu") == 0
    assert "lenet on digits.npz: fgsm by the gradients of pcapsnet3" in capsys.readouterr().err


def test_a_network_of_crops_is_attacked_on_the_whole_images(here, digits_file):
    train = ["train", "--model", "pcapsnet1", "--data", digits_file, "--augment", "crop:27", "--out", "run", *QUICK]
    assert purecaps(*train) == 0
    assert purecaps("attack", "--checkpoint", "run", "--eps", "0.1", "--device", "cpu", "--out", "found") == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--eps", "0.1,big"], r"--eps: expected numbers with commas between, got '0.1,big'"),
        (["--eps", ""], r"--eps: expected numbers with commas between, got ''"),
        (["--eps", "-0.1"], r"eps: expected a number in \[0, 1\], the range of a pixel, got -0.1"),
        (["--eps", "nan"], r"eps: expected a number in \[0, 1\].*got nan"),
        (["--eps", "0.1,8"], r"eps: expected a number in \[0, 1\].*got 8.0"),
        (["--method", "fgms"], r"unknown method 'fgms': did you mean fgsm"),
        (["--loss", "hinge"], r"unknown loss 'hinge': .*known: cross_entropy, difference, margin"),
        (["--limit", "0"], r"--limit: expected an int >= 1, got 0"),
        (["--steps", "5"], r"--steps: expected it with pgd or uap, got it with fgsm"),
        (["--method", "pgd", "--steps", "0"], r"steps: expected an int >= 1, got 0"),
        (["--method", "noise", "--steps", "5"], r"--steps: expected it with pgd or uap, got it with noise"),
        (["--method", "noise", "--source", "pcapsnet2"], r"--source: expected it with fgsm or pgd or uap, got it with noise: pcapsnet2"),
        (["--restarts", "2"], r"--restarts: expected it with pgd, got it with fgsm: 2"),
        (["--method", "pgd", "--restarts", "0"], r"restarts: expected an int >= 1, got 0"),
        (["--method", "pgd", "--aim", "any"], r"--aim: expected it with uap, got it with pgd: any"),
        (["--method", "uap", "--aim", "anny"], r"unknown aim 'anny': did you mean any"),
        (["--method", "uap", "--steps", "0"], r"steps, batch_size: expected ints >= 1, got 0"),
        (["--source", "nowhere"], r"nowhere: expected a model file, found no such file"),
        (["--source", "lenet"], r"pretrained: there are no packaged weights for 'lenet'; train it first"),
        (["--source", "pcapsnet4"], r"--source: expected a network of images 1, 28, 28, as the attacked one, got 3, 32, 32"),
        (["--model", "pcapsnet2", "--checkpoint", "x"], r"--model: expected either --model or --checkpoint, got both"),
        (["--model", "lenet"], r"pretrained: there are no packaged weights for 'lenet'"),
        (["--data", "two.npz"], r"--data: expected the classes 0, 1, 2, .* got 0, 1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_mistake_is_told_in_one_line_and_nothing_is_written(two_classes, here, digits_file, capsys, words, message):
    usual = {"--data": digits_file, "--model": "pcapsnet2", "--device": "cpu", "--out": "found"}
    given = [*words, *(each for name, value in usual.items() if name not in words for each in (name, value))]
    assert purecaps("attack", *given) == 1
    said = capsys.readouterr().err.splitlines()
    assert re.search(message, said[-1])
    assert said[-1].startswith("purecaps: error: ")
    assert len(said) <= 2
    assert not (here / "found").exists()


def test_a_substitute_of_other_classes_is_refused(here, digits_file, capsys):
    np.savez(
        "two.npz",
        train_images=np.zeros((40, 28, 28), np.uint8),
        train_labels=np.arange(40) % 2,
        test_images=np.zeros((2, 28, 28), np.uint8),
        test_labels=np.array([0, 1]),
    )
    assert (
        purecaps("train", "--model", "cnn_small", "--data", "two.npz", "--out", "two", *QUICK, "--val-size", "2") == 0
    )
    assert purecaps("attack", "--data", digits_file, "--source", "two", "--device", "cpu") == 1
    expected = "--source: expected a network of classes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, as the attacked one, got 0, 1"
    assert expected in capsys.readouterr().err
