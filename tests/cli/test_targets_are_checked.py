"""Where nothing could be written, a verb says so before its work."""

import re
from pathlib import Path

import pytest
from typed import purecaps

from purecaps.cli.targets import check_file, check_folder
from purecaps.errors import ConfigError


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a file and a folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quantise", "--qat", "--out", "folder"], "--out: expected a file to write, got folder, which is a folder"),
        (["quantise", "--out", "file/n.safetensors"], "--out: expected a folder to write to, got file: "),
        (["export", "onnx", "--out", "folder"], "--out: expected a file to write, got folder, which is a folder"),
        (["eval", "--out", "file"], "--out: expected a folder to write to, got file: "),
        (["train", "--out", "file"], "--out: expected a folder to write to, got file: "),
        (["train", "--out", "file/a", "--resume"], "--out: expected a folder to write to, got file/a: "),
        (["export", "c", "--out", "file"], "--out: expected a folder to write to, got file: "),
        (["attack", "--out", "file/a/b"], "--out: expected a folder to write to, got file/a/b: "),
        (["bench", "--plot", "x.foo"], "--plot: expected a file name ending in .png, .svg or .pdf, got 'x.foo'"),
        (["bench", "--grow", "capsules", "--plot", "x"], "--plot: expected a file name ending in .png, .svg or .pdf"),
        (["bench", "--csv", "file/r.csv"], "--csv: expected a folder to write to, got file: "),
        (["bench", "--json", "folder"], "--json: expected a file to write, got folder, which is a folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_verb_refuses_it_before_its_work(here, capsys, monkeypatch, words, message):
    def work(*args, **options):
        pytest.fail("expected the target to be looked at first")

    monkeypatch.setattr("purecaps.data.load", work)
    for name in ("evaluate.trained.TrainedModel.from_package", "experiments.bench.bench", "experiments.bench.grow"):
        monkeypatch.setattr(f"purecaps.{name}", work)
    assert purecaps(*words, "--device", "cpu") == 1
    said = capsys.readouterr().err
    assert said.startswith(f"purecaps: error: {message}")
    assert len(said.splitlines()) == 1
    assert {path.name for path in here.iterdir()} == {"file", "folder"}


def test_a_folder_that_may_not_be_written_to_is_refused(here, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root, as in a container, may write anywhere
    with pytest.raises(ConfigError, match=re.escape(f"--out: expected a folder to write to, got new/deep: {here} may")):
        check_file("--out", Path("new/deep/n.onnx"))


def test_what_can_be_written_is_let_through_and_not_made_yet(here):
    check_file("--plot", here / "new" / "deep" / "p.PNG", [".png"])
    check_file("--out", here / "file")
    check_file("--out", None)
    check_folder("--out", here / "folder")
    check_folder("--out", here / "new")
    check_folder("--out", None)
    assert {path.name for path in here.iterdir()} == {"file", "folder"}


def test_the_table_is_printed_before_a_picture_that_cannot_be_written(here, capsys, monkeypatch):
    def full(*args, **options):
        raise OSError(28, "No space left on device", "p.png")

    monkeypatch.setattr("purecaps.evaluate.style.atomic_write", full)
    words = ["--models", "pcapsnet1", "--modes", "inference", "--batches", "3", "--contenders", "conv", "--rounds", "1"]
    assert purecaps("bench", *words, "--device", "cpu", "--plot", "p.png") == 1
    said = capsys.readouterr()
    assert re.search(r"pcapsnet1 +inference +3 +conv +\d", said.out)
    assert said.err.endswith("purecaps: error: p.png: No space left on device\n")
