"""What a user gets wrong is told in one line, with what is allowed."""

import inspect
import re
import typing
from pathlib import Path

import pytest
import typer
from typed import purecaps

from purecaps import cli


def test_an_unknown_recipe_is_told_before_data_is_fetched(capsys, monkeypatch):
    monkeypatch.setattr("purecaps.data.load", lambda *args, **options: pytest.fail("expected no data to be loaded"))
    assert purecaps("train", "--recipe", "papr") == 1
    assert "unknown recipe 'papr': did you mean paper" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--model", "pcapsnet9"], r"unknown model 'pcapsnet9': did you mean pcapsnet"),
        (["train", "--data", "mnits"], r"unknown data set 'mnits': did you mean .*mnist"),
        (["train", "--recipe", "papr"], r"unknown recipe 'papr': did you mean paper"),
        (
            ["train", "--data", "FILE", "--model", "lenet", "--recipe", "best"],
            r"--recipe: expected cnn or cnn_small for lenet, whose scores are logits, got 'best'",
        ),
        (
            ["train", "--data", "FILE", "--model", "pcapsnet1", "--recipe", "cnn"],
            r"--recipe: expected one for capsule networks, such as default, for pcapsnet1, whose scores are lengths, "
            r"got 'cnn', which is for logits",
        ),
        (["bench", "--models", "lenet"], r"models: expected P-CapsNets, got 'lenet'"),
        (["train", "--data", "FILE", "--teacher-share", "0.5"], r"teacher: expected a network with teacher_share 0.5"),
        (["train", "--data", "FILE", "--teacher", "none"], r"none: expected a model file, found no such file"),
        (["train", "--recipe", "paper", "--data", "FILE", "--mixup", "0.5"], r"mixup: expected 0 with loss margin"),
        (
            ["train", "--data", "FILE", "--m-pos", "0.9"],
            r"--m-pos: expected it with --loss margin, got it with cross_entropy: 0.9",
        ),
        (["train", "--option", "pool"], r"--option: expected name=value, such as pool=max, each name once, got 'pool'"),
        (["train", "--option", "a=1", "--option", "a=2"], r"--option: expected name=value, .* got 'a=2'"),
        (["train", "--data", "FILE", "--option", "poll=max"], r"option: expected one that pcapsnet2 has, got 'poll'"),
        (["train", "--data", "FILE", "--option", "in_shape=3"], r"expected one that pcapsnet2 has, got 'in_shape'"),
        (["train", "--data", "FILE", "--option", "pool=sum"], r"unknown pool 'sum'"),
        (
            ["train", "--data", "FILE", "--option", "init=msra"],
            r"option: expected none that recipe or images decide, got init='msra'",
        ),
        (
            ["train", "--data", "FILE", "--option", "mean=3"],
            r"option: expected what pcapsnet2 can be built with, got mean=3: ",
        ),
        (["train", "--data", "FILE", "--lr", "-1"], r"lr: expected a finite number above 0, got -1.0"),
        (["train", "--data", "FILE", "--device", "tpu"], r"device: expected one of auto, cpu, cuda, mps, got 'tpu'"),
        (["train", "--data", "FILE", "--augment", "spin:3"], r"unknown name 'spin'"),
        (
            ["train", "--data", "FILE", "--val-size", "160"],
            r"val_size: expected fewer than the 160 training images, got 160",
        ),
        (["train", "--data", "FILE", "--seed", "-1"], r"seed: expected an int in \[0, 2\^63\), got -1"),
        (["train", "--data", "./nowhere"], r"nowhere: expected a folder of images or a file of arrays, found none"),
        (["train", "--resume"], r"--resume: expected --out DIR"),
        (["train", "--data", ""], r"--data: expected a path or a name, got ''"),
        (["train", "--data", "FILE", "--out="], r"--out: expected a path or a name, got ''"),
        (["eval", "--data", ""], r"--data: expected a path or a name, got ''"),
        (["eval", "--model", "", "--seed", "1"], r"--model: expected a path or a name, got ''"),
        (
            ["train", "--resume", "--data", "FILE", "--out", "typo"],
            r"--resume: expected the folder of a run in --out, got typo, which holds none",
        ),
        (
            ["train", "--data", "FILE", "--image-size", "big"],
            r"--image-size: expected a size such as 28 or 28x32, up to 4096, got 'big'",
        ),
        (["eval", "--checkpoint", "none.safetensors"], r"none.safetensors: expected a model file, found no such file"),
        (["eval", "--checkpoint", "a", "--model", "b"], r"--model: expected either --model or --checkpoint, got both"),
        (["predict", "none.png"], r"none.png: .*"),
        (["predict", "FILE"], r"digits.npz: .*"),
        (["predict", "none.png", "--fit", "--invert"], r"--invert: expected none with --fit, .* got both"),
        (
            ["predict", "none.png", "--fit", "--model", "pcapsnet4"],
            r"--fit: .* grey, square .* got one of \(3, 32, 32\)",
        ),
        (["data", "where", "mnits"], r"unknown data set 'mnits'"),
        (["data", "verify", "mnist", "--root", "empty"], r"mnist is not in the cache"),
        (["data", "list", "--device", "tpu"], r"device: expected one of .*got 'tpu'"),
        (["models", "nosuch*"], r"unknown model 'nosuch\*'.*known: .*pcapsnet0"),
        (
            ["train", "--data", "FILE", "--out", "FILE"],
            r"--out: expected a folder to write to, got .*digits.npz: .* is a file",
        ),
        (["train", "--data", "FILE", "--graph", "--device", "cpu"], r"--graph: expected a CUDA device, got cpu"),
        (["train", "--data", "FILE", "--image-size", "²"], r"--image-size: expected a size such as 28"),
        (["eval", "--seed", "99999999999999999999999"], r"seed: expected an int in \[0, 2\^63\)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_in_one_line(here, digits_file, capsys, words, message):
    assert purecaps(*(str(digits_file) if word == "FILE" else word for word in words)) == 1
    said = capsys.readouterr().err
    assert re.search(message, said)
    assert said.splitlines()[-1].startswith("purecaps: error: ")
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 2
    assert not (here / "runs").exists()


def test_no_option_of_a_path_takes_an_empty_one():
    verbs = [each.callback for group in (cli.app, cli.data.app, cli.export.app) for each in group.registered_commands]
    found = set()
    for verb in verbs:
        for name, parameter in inspect.signature(verb, eval_str=True).parameters.items():
            kind, *rest = typing.get_args(parameter.annotation) or [parameter.annotation]  # the context is no option
            info = rest[-1] if rest else None
            if Path in (kind, *typing.get_args(kind)) and isinstance(info, typer.models.OptionInfo) and not info.hidden:
                # In Annotated, an option's name stands where its default would.
                found.add(info.default if isinstance(info.default, str) else f"--{name}")
    assert {"--out", "--checkpoint", "--root"} <= found <= set(cli.NAMED)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--modle", "x"], r"No such option.*--modle"),
        (["train", "--steps", "abc"], r"--steps"),
        (["trian"], r"No such command.*trian"),
        (["predict"], r"Missing argument"),
    ],
)
def test_a_slip_of_the_keyboard_is_told_in_one_line_too(capsys, words, message):
    assert purecaps(*words) == 2
    said = capsys.readouterr().err
    assert re.search(message, said)
    assert len(said.splitlines()) == 1
