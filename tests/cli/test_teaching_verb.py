"""`purecaps train --teacher`: a network that learns from another."""

import json
import re

import torch
from typed import QUICK, purecaps

from purecaps import load_model


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
