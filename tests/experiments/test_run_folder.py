"""A run's folder is held by one process at a time."""

import subprocess
import sys

import pytest

from purecaps.errors import ConfigError
from purecaps.experiments.run_folder import held


def test_a_held_folder_is_refused_to_others_and_free_again_afterwards(tmp_path):
    with held(tmp_path / "run") as folder:
        (folder / "config.json").write_text("{}")
        with (
            pytest.raises(ConfigError, match=r"--out: expected a folder that no other run is using, got .*run"),
            held(tmp_path / "run"),
        ):
            pytest.fail("expected it to be refused")
    with held(tmp_path / "run") as again:
        assert again == folder
    assert [path.name for path in folder.iterdir()] == ["config.json"], "expected no lock to stay behind"


def test_a_new_folder_is_one_that_nobody_else_has(tmp_path):
    with held(tmp_path / "run", new=True) as first, held(tmp_path / "run", new=True) as second:
        (first / "a").touch()
    with held(tmp_path / "run", new=True) as third:
        pass
    assert [path.name for path in (first, second, third)] == ["run", "run-2", "run-2"]


def test_a_process_that_dies_holds_nothing(tmp_path):
    code = (
        "import os, pathlib, sys; from purecaps.experiments.run_folder import held; "
        "block = held(pathlib.Path(sys.argv[1])); block.__enter__(); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path / "run"]).returncode == 9
    assert (tmp_path / "run" / ".lock").exists()
    with held(tmp_path / "run"):
        pass
    assert list((tmp_path / "run").iterdir()) == []


def test_what_was_made_for_nothing_is_removed_and_what_was_there_is_not(tmp_path):
    (tmp_path / "mine").mkdir()
    for out in ("runs/deep/run", "mine"):
        with pytest.raises(ZeroDivisionError), held(tmp_path / out):
            raise ZeroDivisionError
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert list((tmp_path / "mine").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(tmp_path, monkeypatch):
    def refuse(*args, **options):
        raise PermissionError(13, "Permission denied", "new")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with (
        pytest.raises(ConfigError, match=r"--out: expected a folder to write to, got .*new: Permission denied"),
        held(tmp_path / "new"),
    ):
        pytest.fail("expected it to be refused")
