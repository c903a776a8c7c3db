"""What all verbs have in common: help, one line for a fault, the traceback of a bug."""

import re
import subprocess
import sys

import pytest
import torch
import typer
from PIL import Image
from typed import QUICK, purecaps

from purecaps import cli

APP = typer.main.get_command(cli.app)
VERBS = [
    [name, *rest]
    for name, verb in APP.commands.items()
    for rest in ([[inner] for inner in verb.commands] if hasattr(verb, "commands") else [[]])
]


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


def test_debug_shows_the_traceback(here):
    with pytest.raises(KeyError, match="unknown model"):
        cli.main(["train", "--model", "pcapsnet9", "--debug"])


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
    assert purecaps("eval", "--model", "pcapsnet2", "--data", digits_file, "--device", "cpu") == 1
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
