"""`purecaps train --resume`: a run that was killed, interrupted or finished, and folders that are not overwritten."""

import json
import random
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from typed import QUICK, purecaps

from purecaps import load_model
from purecaps.errors import ConfigError
from purecaps.experiments.run_folder import held
from purecaps.train.log import ConsoleWatcher


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

    whole, parts = (load_model(here / name / "model.safetensors")[0].state_dict() for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


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


def test_a_run_goes_on_with_the_same_images_from_another_path(trained, digits_file, capsys):
    digits_file.rename(digits_file.with_name("moved.npz"))
    words = ["train", "--out", trained, "--resume", "--device", "cpu"]
    capsys.readouterr()
    assert purecaps(*words) == 1
    assert capsys.readouterr().err == (
        f"purecaps: error: --data: expected the images that the run in {trained} was begun with in {digits_file}, "
        "found none there; give --data with where they are now\n"
    )
    assert purecaps(*words, "--data", "moved.npz") == 0
    moved = str(digits_file.with_name("moved.npz"))
    assert json.loads((trained / "result.json").read_text())["data"] == moved
    assert purecaps("eval", "--checkpoint", trained, "--device", "cpu") == 0
    assert purecaps(*words, "--data", "moved.npz") == 0, "expected the move to leave the run as it was begun"


def test_several_seeds_go_on_with_the_same_images_from_another_path(here, digits_file):
    words = ["train", "--model", "pcapsnet1", "--out", "run", "--device", "cpu", "--data"]
    assert purecaps(*words, digits_file, "--seeds", 2, *QUICK) == 0
    digits_file.rename("moved.npz")
    assert purecaps(*words, "moved.npz", "--resume") == 0


def test_going_on_with_other_images_from_another_path_is_refused(trained, digits_file, capsys):
    with np.load(digits_file) as file:
        arrays = dict(file)
    arrays["train_labels"] = arrays["train_labels"][::-1]
    np.savez("other.npz", **arrays)
    assert purecaps("train", "--out", trained, "--resume", "--data", "other.npz", "--device", "cpu") == 1
    told = capsys.readouterr().err
    assert f"--data: expected the training images that the run in {trained} was begun with, those of {digits_file}, got others from {trained.parent / 'other.npz'}" in told  # fmt: skip


def test_where_no_checkpoint_tells_the_images_another_path_is_refused(trained, digits_file, capsys):
    for path in (trained / "checkpoints").iterdir():
        path.unlink()
    digits_file.rename("moved.npz")
    assert purecaps("train", "--out", trained, "--resume", "--data", "moved.npz") == 1
    assert f"--data: expected '{digits_file}', as the run in {trained} was begun with" in capsys.readouterr().err


def test_a_set_by_name_is_not_taken_for_another(trained, capsys):
    assert purecaps("train", "--out", trained, "--resume", "--data", "mnist") == 1
    assert f"as the run in {trained} was begun with, got 'mnist'" in capsys.readouterr().err
