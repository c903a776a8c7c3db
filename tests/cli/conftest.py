"""What the tests of the command line share: a folder to work in, and a run."""

import numpy as np
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


@pytest.fixture
def two_classes(here):
    """two.npz in that folder: images of two classes, where the digits have ten."""
    np.savez(
        "two.npz",
        train_images=np.zeros((4, 28, 28), np.uint8),
        train_labels=np.array([0, 1, 0, 1]),
        test_images=np.zeros((2, 28, 28), np.uint8),
        test_labels=np.array([0, 1]),
    )
