"""Fixtures that several packages share."""

from pathlib import Path

import numpy as np
import pytest
import torch

from purecaps.data import Dataset, Split
from purecaps.ops import registry


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items):
    for item in items:
        if torch.cuda.is_available():
            # What the interpreter runs elsewhere is compiled there, and is a test of the GPU.
            if "kernels" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.gpu)
        elif "gpu" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    outcome = yield
    if "gpu" in item.keywords and torch.cuda.is_available():
        try:
            torch.cuda.synchronize()
        except RuntimeError as error:  # this process can use the GPU no more, and all tests after it would fail
            pytest.exit(f"{item.nodeid} left the GPU in error: {error}", returncode=3)
    return outcome


SAMPLE = Path(__file__).parent / "assets" / "mnist_sample.npz"


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """Two hundred real MNIST digits: 160 to train on, 40 to test on."""
    with np.load(SAMPLE, allow_pickle=False) as file:
        images, labels = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"]).long()
    images = images.reshape(-1, 1, 28, 28)
    names = tuple(str(digit) for digit in range(10))
    return Dataset("digits", Split(images[:160], labels[:160]), Split(images[160:], labels[160:]), names)


@pytest.fixture
def own_registry(monkeypatch):
    """What a test registers is gone after it."""
    monkeypatch.setattr(registry, "_IMPLEMENTATIONS", dict(registry._IMPLEMENTATIONS))


@pytest.fixture
def kernels(monkeypatch):
    """Triton kernels that can run here; the module that uses it imports `interpreted` at its top."""
    import interpreted

    interpreted.set_up(monkeypatch)


@pytest.fixture
def digits_file(digits, tmp_path) -> Path:
    """The same digits as a file that `--data` takes."""
    path = tmp_path / "digits.npz"
    np.savez(
        path,
        train_images=digits.train.images.numpy(),
        train_labels=digits.train.labels.numpy(),
        test_images=digits.test.images.numpy(),
        test_labels=digits.test.labels.numpy(),
    )
    return path
