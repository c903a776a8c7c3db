"""What the tests of the command line share: a folder to work in, and a run."""

import pytest
from typed import QUICK, purecaps


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trained(here, digits_file, capsys):
    """The folder of a run on the small file of digits."""
    words = ["--model", "pcapsnet1", "--data", digits_file, "--out", "run", "--device", "cpu"]
    assert purecaps("train", *words, *QUICK) == 0
    return here / "run"
