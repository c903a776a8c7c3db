"""The command line, as a user types it."""

import inspect
import json
import random
import re
import subprocess
import sys
import time
import typing
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from purecaps import cli, load_model
from purecaps.cli.support import parse_options
from purecaps.errors import ConfigError
from purecaps.experiments.run_folder import held
from purecaps.models import ModelInfo, create_model, registry, save_model
from purecaps.train.log import ConsoleWatcher

QUICK = ["--steps", "6", "--batch-size", "16", "--val-size", "20", "--log-every", "2", "--checkpoint-every", "2"]
VERBS = [
    ["train"],
    ["eval"],
    ["predict"],
    ["attack"],
    ["models"],
    ["quantise"],
    ["bench"],
    ["export", "c"],
    ["export", "onnx"],
    ["data", "list"],
    ["data", "fetch"],
    ["data", "verify"],
    ["data", "where"],
]


def purecaps(*words: object) -> int:
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in words])
    return int(stop.value.code or 0)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(here, digits_file, capsys):
    assert (
        purecaps("train", "--model", "pcapsnet1", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK) == 0
    )
    return here / "run"


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_help_with_an_example(verb, capsys):
    assert purecaps(*verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"Example: purecaps {' '.join(verb)}" in text
    assert "--seed" in text
    assert "--device" in text


def test_it_runs_as_a_module_too():
    done = subprocess.run([sys.executable, "-m", "purecaps", "--version"], capture_output=True, text=True, check=True)
    assert re.match(r"purecaps \d+\.\d+\.\d+.* \(torch ", done.stdout)


def test_training_ends_with_the_test_error_and_leaves_everything(trained, capsys):
    assert re.search(r"test error: \d+\.\d\d %\n$", capsys.readouterr().out)
    names = {path.name for path in trained.iterdir()}
    assert {
        "config.json",
        "metrics.jsonl",
        "model.safetensors",
        "result.json",
        "report.html",
        "confusion.png",
        "worst.png",
        "checkpoints",
    } <= names
    result = json.loads((trained / "result.json").read_text())
    assert result["parameters"] == 2952
    assert result["test_images"] == 40
    assert result["versions"]["torch"] == str(torch.__version__)
    assert json.loads((trained / "config.json").read_text())["recipe"]["steps"] == 6


def test_nothing_is_written_but_where_told(trained):
    assert {path.name for path in trained.parent.iterdir()} == {"run", "digits.npz"}


def test_without_out_a_new_folder_is_taken_each_time(here, digits_file):
    for _ in range(2):
        assert purecaps("train", "--data", digits_file, "--device", "cpu", *QUICK, "--steps", "2") == 0
    assert sorted(path.name for path in (here / "runs").iterdir()) == [
        "pcapsnet2-digits-default-seed0",
        "pcapsnet2-digits-default-seed0-2",
    ]


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


def test_a_folder_of_images_is_trained_on(here, digits):
    for index, (image, label) in enumerate(zip(digits.train.images, digits.train.labels.tolist(), strict=True)):
        folder = here / "pictures" / f"digit {label}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(folder / f"{index}.png")
    assert purecaps("train", "--data", "pictures", "--image-size", "32", "--out", "run", "--device", "cpu", *QUICK) == 0
    assert purecaps("predict", here / "pictures" / "digit 0" / "3.png", "--checkpoint", "run") == 0
    assert purecaps("eval", "--checkpoint", "run") == 0


def test_several_seeds_are_trained_at_once(here, digits_file, capsys):
    words = ["--data", digits_file, "--out", "run", "--seeds", "3", "--seed", "4", "--device", "cpu", *QUICK]
    assert purecaps("train", "--model", "pcapsnet1", *words) == 0
    text = capsys.readouterr().out
    assert re.search(r"test error: \d+\.\d\d \+- \d+\.\d\d % \(3 seeds\)\n$", text)
    assert {path.name for path in here.glob("run/seed-*")} == {"seed-4", "seed-5", "seed-6"}
    result = json.loads((here / "run" / "result.json").read_text())
    assert [run["seed"] for run in result["runs"]] == result["seeds"] == [4, 5, 6]
    assert purecaps("eval", "--checkpoint", here / "run" / "seed-5") == 0
    assert f"test error: {result['runs'][1]['test_error']:.2f} %" in capsys.readouterr().out
    for words in (["eval", "--checkpoint", "run"], ["train", "--data", digits_file, "--teacher", "run"]):
        assert purecaps(*words) == 1
        expected = "run: expected the folder of one network, got that of several seeds; give one of its seeds, such as "
        assert f"error: {expected}run/seed-4\n" in capsys.readouterr().err


def test_resuming_a_finished_run_only_reports_again(trained, capsys):
    before = (trained / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert purecaps("train", "--out", trained, "--resume", "--device", "cpu") == 0
    assert "test error:" in capsys.readouterr().out
    tensors = slice(-4 * 2952, None)
    assert (trained / "model.safetensors").read_bytes()[tensors] == before[tensors]


def test_going_on_where_there_is_nothing_begins_only_the_network_that_was_named(here, digits_file, capsys):
    words = ["train", "--data", digits_file, "--out", "run", "--resume", "--device", "cpu", *QUICK]
    assert purecaps(*words) == 1
    assert not (here / "run").exists()
    assert purecaps(*words, "--model", "pcapsnet1") == 0
    assert "nothing to go on with in run: starting at step 0" in capsys.readouterr().err


@pytest.mark.parametrize("model", ["idpa_capsnet", "capsnet_vb"])
def test_a_recipe_for_logits_is_taken_by_capsule_networks_that_are_trained_so(here, digits_file, capsys, model):
    # Too many images held out is found only later: by then the recipe was taken.
    words = ["--model", model, "--recipe", "cnn", "--data", digits_file, "--val-size", "160", "--device", "cpu"]
    assert purecaps("train", *words) == 1
    assert "val_size: expected fewer than" in capsys.readouterr().err


@pytest.mark.slow
def test_killed_three_times_and_resumed_the_weights_are_the_same(here, digits_file):
    words = [
        "train",
        "--model",
        "pcapsnet1",
        "--data",
        str(digits_file),
        "--device",
        "cpu",
        *QUICK,
        "--steps",
        "400",
        "--ema",
        "0.9",
    ]
    command = [sys.executable, "-m", "purecaps", *words]
    subprocess.run([*command, "--out", "whole"], check=True, capture_output=True)
    moments = random.Random(0)
    for _ in range(3):
        process = subprocess.Popen(
            [*command, "--out", "parts", "--resume"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        begun = time.monotonic()
        while not list(here.glob("parts/checkpoints/*")) and time.monotonic() - begun < 60:
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 1.0))
        process.kill()
        process.wait()
    subprocess.run([*command, "--out", "parts", "--resume"], check=True, capture_output=True)
    from purecaps import load_model

    whole, parts = (load_model(here / name / "model.safetensors")[0].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


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


def test_a_recipes_optimiser_schedule_and_loss_can_be_changed_and_gone_on_with(here, digits_file, capsys):
    words = ["--optimiser", "sgd", "--schedule", "milestones", "--milestones", "0.4", "--milestones", "0.8"]
    words += ["--loss", "spread", "--augment", "contrast:0.2", "--augment", "standardise", "--lr", "0.1"]
    run = ["train", "--model", "pcapsnet1", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK]
    assert purecaps(*run, *words) == 0
    recipe = json.loads((here / "run" / "config.json").read_text())["recipe"]
    assert (recipe["optimiser"], recipe["milestones"], recipe["loss"]) == ("sgd", [0.4, 0.8], "spread")
    rates = [json.loads(line)["lr"] for line in (here / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rates == pytest.approx([0.1, 0.05, 0.025])
    assert purecaps(*run, *words, "--resume") == 0
    assert purecaps(*run, "--milestones", "0.5", "--resume") == 1
    assert "--milestones: expected (0.4, 0.8), as the run in run was begun with, got (0.5,)" in capsys.readouterr().err
    assert purecaps("eval", "--checkpoint", "run", "--data", digits_file, "--device", "cpu") == 0


def test_an_option_of_the_network_is_kept_in_its_run_and_its_file(here, digits_file, capsys):
    run = ["train", "--model", "pcapsnet1", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK]
    assert purecaps(*run, "--augment", "shift:2", "--option", "pool=max") == 0
    for name in ("config.json", "result.json"):
        assert json.loads((here / "run" / name).read_text())["options"] == {"pool": "max"}
    network, info = load_model(here / "run" / "model.safetensors")
    assert (network.head.pool, info.overrides["pool"]) == ("max", "max")
    before = network.state_dict()
    (here / "run" / "checkpoints" / "step-00000006.safetensors").unlink()
    assert purecaps("train", "--out", "run", "--resume", "--device", "cpu") == 0
    after = load_model(here / "run" / "model.safetensors")[0]
    assert after.head.pool == "max"
    assert all(torch.equal(before[name], tensor) for name, tensor in after.state_dict().items())
    assert purecaps("eval", "--checkpoint", "run", "--device", "cpu") == 0
    capsys.readouterr()
    assert purecaps("train", "--out", "run", "--resume", "--option", "pool=mean") == 1
    assert "--option: expected {'pool': 'max'}, as the run in run was begun with" in capsys.readouterr().err


def test_values_of_options_are_json_where_they_can_be_else_text():
    words = ["a=3", "b=0.5", "c=true", "d=[1, 2]", "e=null", "f=max", "g=", "h=x=y", "i=NaN", 'j="3"']
    numbers = {"a": 3, "b": 0.5, "c": True, "d": [1, 2], "e": None}
    assert parse_options(words) == {**numbers, "f": "max", "g": "", "h": "x=y", "i": "NaN", "j": "3"}


def test_models_lists_parameters_and_work(capsys):
    assert purecaps("models", "pcapsnet2") == 0
    text = capsys.readouterr().out
    assert re.search(r"pcapsnet2 +3,888 +214,416 +1x28x28", text)
    assert "pcapsnet0" not in text
    assert purecaps("models", "cnn_*") == 0
    text = capsys.readouterr().out
    assert re.search(r"cnn_small +3,888 +180,432 +1x28x28 +-", text)
    assert "decoder" not in text


def test_models_counts_a_decoder_apart(capsys):
    assert purecaps("models", "*capsnet_dr*") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split()[:3] == ["model", "parameters", "decoder's"]
    assert re.search(r"capsnet_dr +6,804,384 +1,411,344 +200,871,936", text)
    assert re.search(r"capsnet_dr_nodecoder +6,804,384 +- +200,871,936", text)


def test_a_network_learns_from_another_and_goes_on_without_being_told_of_it_again(trained, digits_file, monkeypatch):
    taught = ["--teacher", "run", "--teacher-share", "0.9", "--teacher-temperature", "2", "--mixup", "0.2"]
    words = ["train", "--data", digits_file, "--out", "pupil", "--device", "cpu"]
    assert purecaps(*words, *taught, *QUICK) == 0
    pupil, teacher = trained.parent / "pupil", str(trained / "model.safetensors")
    assert json.loads((pupil / "config.json").read_text())["teacher"] == teacher
    assert json.loads((pupil / "result.json").read_text())["teacher"] == teacher
    before = load_model(pupil / "model.safetensors")[0].state_dict()
    (pupil / "checkpoints" / "step-00000006.safetensors").unlink()
    monkeypatch.chdir(pupil)
    assert purecaps("train", "--out", ".", "--resume", "--device", "cpu") == 0
    after = load_model(pupil / "model.safetensors")[0].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before.keys() | after.keys())


def test_a_packaged_network_teaches_by_its_name_and_those_that_held_out_others_do_not(trained, digits_file, capsys):
    words = ["train", "--data", digits_file, "--device", "cpu", *QUICK, "--teacher-share", "0.5"]
    assert purecaps(*words, "--out", "pupil", "--teacher", "pcapsnet0") == 0
    assert json.loads((trained.parent / "pupil" / "config.json").read_text())["teacher"] == "pcapsnet0"
    capsys.readouterr()
    assert purecaps(*words, "--out", "other", "--teacher", "run", "--val-size", "10") == 1
    assert re.search(r"teacher: expected .* val_size 10, .* got .*model.safetensors with 20", capsys.readouterr().err)
    assert not (trained.parent / "other").exists()


MY_MODELS = """
from purecaps import Layer, PCapsNet
from purecaps.models import register_model

@register_model(in_shape=(1, 28, 28))
def my_capsnet(*, in_shape, num_classes, **options):
    layers = [Layer(1, None, 16, stride=4), Layer(None, 4, 8, stride=4)]
    return PCapsNet(layers, in_shape=in_shape, num_classes=num_classes, **options)
"""


def test_a_network_of_ones_own_is_trained_and_used_once_its_module_is_imported(here, digits_file, capsys, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (here / "my_models.py").write_text(MY_MODELS)
    words = ["train", "--model", "my_capsnet", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK]
    assert purecaps(*words) == 1
    assert "unknown model 'my_capsnet'" in capsys.readouterr().err
    assert purecaps("--import", "my_models", *words) == 0
    assert purecaps("--import", "my_models", "eval", "--checkpoint", "run", "--device", "cpu") == 0


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no_such_models", r"--import: expected a module .* got 'no_such_models': No module named 'no_such_models'"),
        ("../mine", r"--import: expected a module's name, such as my_models, got '../mine'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_in_one_line(capsys, monkeypatch, module, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert purecaps("--import", module, "models") == 1
    told = capsys.readouterr().err
    assert re.search(message, told)
    assert len(told.splitlines()) == 1


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
        (["train", "--data", "FILE", "--out", "FILE"], r"digits.npz.*: (Not a directory|File exists)"),
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
            kind, *rest = typing.get_args(parameter.annotation)
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


def test_names_with_brackets_are_shown_as_they_are(here, digits, capsys):
    for index in range(12):
        folder = here / "a[/b]" / ("[red]" if index % 2 else "[cat]")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.train.images[index, 0].numpy()).save(folder / f"{index}.png")
    words = ["--data", "a[/b]", "--out", "my run", "--steps", "2", "--batch-size", "4", "--device", "cpu"]
    assert purecaps("train", "--model", "pcapsnet1", *words) == 0
    assert purecaps("predict", here / "a[/b]" / "[cat]" / "0.png", "--checkpoint", "my run") == 0
    text = capsys.readouterr().out
    assert "[red]" in text
    assert "[cat]/0.png" in text


@pytest.mark.parametrize(
    "options",
    [
        ["--preprocess", "gcn_zca"],
        ["--pixel-scale", "0.002"],
        ["--augment", "crop:27"],
        ["--preprocess", "standardise"],
    ],
    ids=" ".join,
)
def test_a_saved_network_keeps_how_its_input_is_made(here, digits_file, capsys, options):
    words = ["--model", "pcapsnet1", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK, "--steps", "30"]
    assert purecaps("train", *words, *options) == 0
    trained = re.search(r"test error: .*", capsys.readouterr().out)[0]
    assert purecaps("eval", "--checkpoint", "run", "--device", "cpu") == 0
    assert trained in capsys.readouterr().out


def test_predict_prints_the_longest_capsule_first_and_inverts_on_request(here, digits, capsys):
    Image.fromarray(255 - digits.test.images[0, 0].numpy()).save("ink.png")
    assert purecaps("predict", "ink.png", "--invert") == 0
    rows = re.findall(r"^(\d) +(0\.\d{4})", capsys.readouterr().out, re.MULTILINE)
    assert rows[0][0] == str(int(digits.test.labels[0]))
    lengths = [float(length) for _, length in rows]
    assert lengths == sorted(lengths, reverse=True)


def pages(digits):
    """Twelve digits, dark on white pages of 400 x 300 pixels, each elsewhere; gives their paths."""
    for index, image in enumerate(digits.test.images[:12, 0].numpy()):
        digit = Image.fromarray(255 - image).resize((140, 140), Image.Resampling.BICUBIC)
        page = Image.new("L", (400, 300), 255)
        page.paste(digit, (20 * index, 13 * index))
        page.save(f"page {index}.png")
        yield f"page {index}.png"


def test_predict_fits_digits_on_paper_and_says_where_it_only_stretches(here, digits, capsys):
    paths = list(pages(digits))
    labels = [str(label) for label in digits.test.labels[:12].tolist()]

    def right():
        found = re.findall(r"^class .*\n(\d) ", capsys.readouterr().out, re.MULTILINE)
        assert len(found) == 12
        return sum(each == label for each, label in zip(found, labels, strict=True))

    assert purecaps("predict", *paths, "--model", "pcapsnet2", "--fit") == 0
    assert right() >= 11
    assert purecaps("predict", *paths, "--model", "pcapsnet2", "--invert") == 0
    assert right() < 6
    assert purecaps("predict", paths[0], "--model", "pcapsnet2", "--invert") == 0
    said = capsys.readouterr().err
    assert said == "page 0.png: stretched from 400x300 pixels to 28x28; --fit would find a digit in it and keep its proportions\n"  # fmt: skip


def test_predict_says_nothing_of_images_that_are_nearly_square(here, capsys):
    Image.new("L", (35, 28), 255).save("digit.png")
    assert purecaps("predict", "digit.png", "--model", "pcapsnet2") == 0
    assert capsys.readouterr().err == ""


def test_predict_does_not_advise_what_it_would_refuse(here, capsys):
    Image.new("RGB", (60, 32)).save("wide.png")
    assert purecaps("predict", "wide.png", "--model", "pcapsnet4") == 0
    assert capsys.readouterr().err == "wide.png: stretched from 60x32 pixels to 32x32\n"


def test_the_command_that_began_a_run_is_kept_when_it_is_gone_on_with(trained, monkeypatch):
    before = json.loads((trained / "result.json").read_text())["command"]
    monkeypatch.setattr(sys, "argv", ["purecaps", "train", "--resume", "and so on"])
    assert purecaps("train", "--out", trained, "--resume", "--device", "cpu") == 0
    assert json.loads((trained / "result.json").read_text())["command"] == before


def test_a_run_on_own_images_is_gone_on_with_from_another_folder(here, digits_file, monkeypatch):
    assert (
        purecaps("train", "--model", "pcapsnet1", "--data", digits_file.name, "--out", "run", "--device", "cpu", *QUICK)
        == 0
    )
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert purecaps("train", "--out", "../run", "--resume", "--data", "../digits.npz", "--device", "cpu") == 0
    assert purecaps("eval", "--checkpoint", "../run", "--device", "cpu") == 0


def test_going_on_with_other_images_is_refused(trained, digits_file, capsys):
    with np.load(digits_file) as file:
        arrays = dict(file)
    arrays["train_images"][0, 0, 3, 3] ^= 1
    np.savez(digits_file, **arrays)
    assert purecaps("train", "--out", trained, "--resume", "--device", "cpu") == 1
    assert "expected the training images that the run was begun with" in capsys.readouterr().err


def test_debug_shows_the_traceback(here):
    with pytest.raises(KeyError, match="unknown model"):
        cli.main(["train", "--model", "pcapsnet9", "--debug"])


def test_a_folder_with_a_run_is_not_overwritten(trained, digits_file, capsys):
    before = (trained / "model.safetensors").read_bytes()
    assert purecaps("train", "--data", digits_file, "--out", trained) == 1
    assert "which holds a run; go on with it by --resume" in capsys.readouterr().err
    assert (trained / "model.safetensors").read_bytes() == before


def test_a_folder_where_a_run_failed_before_its_first_checkpoint_can_be_begun_in_anew(here, digits_file, monkeypatch):
    words = ["train", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK]
    for code, rate in ((1, "1e38"), (0, "0.001")):
        monkeypatch.setattr(sys, "argv", ["purecaps", "train", "--lr", rate])
        assert purecaps(*words, "--lr", rate, "--warmup", "0") == code
    assert json.loads((here / "run" / "config.json").read_text())["recipe"]["lr"] == 0.001
    assert json.loads((here / "run" / "result.json").read_text())["command"] == "purecaps train --lr 0.001"


def test_a_run_whose_configuration_is_lost_is_not_overwritten_by_another(trained, digits_file, capsys):
    (trained / "config.json").unlink()
    words = ["train", "--model", "pcapsnet1", "--data", digits_file, "--out", trained, "--device", "cpu", *QUICK]
    assert purecaps(*words, "--lr", "0.5") == 1
    assert "which holds a run; go on with it by --resume" in capsys.readouterr().err
    assert purecaps(*words, "--lr", "0.5", "--resume") == 1
    said = capsys.readouterr().err
    assert "got another one: lr is 0.01, not 0.5" in said
    assert "starting at step 0" not in said
    assert not (trained / "config.json").exists(), "expected nothing to be written before the check"
    assert purecaps(*words, "--resume") == 0
    assert (trained / "config.json").exists()


@pytest.mark.parametrize("words", [[], ["--resume"]], ids=["begun", "gone on with"])
def test_a_folder_that_another_run_is_using_is_refused_in_one_line(here, digits_file, capsys, words):
    with held(here / "run"):
        assert purecaps("train", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK, *words) == 1
    said = "purecaps: error: --out: expected a folder that no other run is using, got run\n"
    assert capsys.readouterr().err == said
    assert not (here / "run").exists()


@pytest.mark.parametrize("words", [[], ["--out", "deep/run"]], ids=["runs", "out"])
def test_a_run_that_is_refused_leaves_no_folder(here, digits_file, words):
    assert purecaps("train", "--data", digits_file, "--device", "cpu", *QUICK, *words, "--val-size", "160") == 1
    assert {path.name for path in here.iterdir()} == {"digits.npz"}


def test_the_folder_is_held_while_the_run_trains(here, digits_file, monkeypatch):
    def start(self, total, done):
        with pytest.raises(ConfigError, match="no other run is using"), held(here / "run"):
            pass
        started.append(True)

    started = []
    monkeypatch.setattr(ConsoleWatcher, "start", start)
    assert purecaps("train", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK) == 0
    assert started == [True]
    assert not (here / "run" / ".lock").exists()


@pytest.mark.parametrize(("option", "value"), [("--model", "pcapsnet0"), ("--lr", "0.5"), ("--seed", "7")])
def test_going_on_with_other_options_is_refused(trained, capsys, option, value):
    assert purecaps("train", "--out", trained, "--resume", option, value) == 1
    assert f"{option}: expected" in capsys.readouterr().err


def test_ctrl_c_saves_and_says_how_to_go_on(here, digits_file):
    command = [
        sys.executable,
        "-m",
        "purecaps",
        "train",
        "--data",
        str(digits_file),
        "--out",
        "run",
        "--device",
        "cpu",
        "--val-size",
        "20",
        "--batch-size",
        "16",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    begun = time.monotonic()
    while not (here / "run" / "metrics.jsonl").exists() and time.monotonic() - begun < 60:
        time.sleep(0.05)
    time.sleep(1)
    process.send_signal(2)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search(r"stopped at step \d+ of \d+; go on with: purecaps train --out run --resume", said)
    assert list((here / "run" / "checkpoints").iterdir())


def interrupt(*args, **options):
    raise KeyboardInterrupt


def test_ctrl_c_after_the_last_step_says_how_to_go_on(here, digits_file, capsys, monkeypatch):
    monkeypatch.setattr("purecaps.experiments.run.evaluate", interrupt)
    assert purecaps("train", "--data", digits_file, "--out", "my run", "--device", "cpu", *QUICK) == 130
    assert capsys.readouterr().err.endswith("\nstopped; go on with: purecaps train --out 'my run' --resume\n")
    monkeypatch.undo()
    assert purecaps("train", "--out", here / "my run", "--resume", "--device", "cpu") == 0


def test_ctrl_c_before_anything_is_written_says_so_much_and_leaves_no_folder(here, digits_file, capsys, monkeypatch):
    monkeypatch.setattr("purecaps.train.loop.prepare", interrupt)
    assert purecaps("train", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK) == 130
    assert capsys.readouterr().err.endswith("\ninterrupted\n")
    assert not (here / "run").exists()


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


def test_a_set_with_other_classes_is_refused(trained, here, capsys):
    np.savez(
        "two.npz",
        train_images=np.zeros((4, 28, 28), np.uint8),
        train_labels=np.array([0, 1, 0, 1]),
        test_images=np.zeros((2, 28, 28), np.uint8),
        test_labels=np.array([0, 1]),
    )
    assert purecaps("eval", "--checkpoint", trained, "--data", "two.npz") == 1
    assert "--data: expected the classes 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in capsys.readouterr().err


ALLOCATOR = "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate"),
            "out of memory: try a lower --batch-size than 16",
        ),
        (MemoryError(), "out of memory: try a lower --batch-size than 16"),
        (RuntimeError(ALLOCATOR), "out of memory: try a lower --batch-size than 16"),
        (OverflowError("int too big to convert"), "a number is too large: int too big to convert"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_too_much_memory_is_told_in_one_line(here, digits_file, capsys, monkeypatch, fault, message):
    def fail(*args, **options):
        raise fault

    monkeypatch.setattr("purecaps.train.loop.prepare", fail)
    assert purecaps("train", "--data", digits_file, "--device", "cpu", *QUICK) == 1
    assert capsys.readouterr().err.endswith(f"\npurecaps: error: {message}\n")


def test_without_a_batch_size_to_lower_memory_is_told_of_too(here, digits_file, capsys, monkeypatch):
    def fail(*args, **options):
        raise MemoryError

    monkeypatch.setattr("purecaps.data.load", fail)
    assert purecaps("eval", "--data", digits_file, "--device", "cpu") == 1
    assert capsys.readouterr().err == "purecaps: error: out of memory\n"


def test_a_bug_keeps_its_traceback(here, digits_file, monkeypatch):
    def fail(*args, **options):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr("purecaps.train.loop.prepare", fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        cli.main(["train", "--data", str(digits_file), "--device", "cpu", *QUICK])


def test_a_full_disk_is_told_in_one_line(here, digits_file, capsys, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device", "run/config.json")

    monkeypatch.setattr("purecaps.train.config.atomic_write", full)
    assert purecaps("train", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK) == 1
    assert capsys.readouterr().err.endswith("purecaps: error: run/config.json: No space left on device\n")
