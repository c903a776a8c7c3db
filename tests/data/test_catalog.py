from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fake_web import FakeWeb, toy_spec

from purecaps import data
from purecaps.data import specs
from purecaps.data.sources import WebArchive, WebFiles
from purecaps.errors import ConfigError, DataError, UnknownNameError


def test_load_fetches_on_first_use_and_then_reads_the_cache(
    web: FakeWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data.catalog, "SPECS", {"toy": toy_spec(web.source())})
    monkeypatch.setenv("PURECAPS_DATA", str(tmp_path))
    assert data.status("toy").state == "absent"
    with pytest.raises(DataError, match=r"toy is not in the cache .* purecaps data fetch toy"):
        data.verify("toy")
    first, second = data.load("toy"), data.load("toy")
    assert len(web.requests) == 4
    assert torch.equal(first.train.images, second.train.images)
    assert first.class_names == ("a", "b", "c")
    state = data.status("toy")
    assert (state.state, state.path, state.source) == ("ready", tmp_path / "toy", str(web.source()))
    assert data.verify("toy") == ()
    assert data.fetch("toy", force=True).state == "ready"
    assert len(web.requests) == 8
    (tmp_path / "toy" / "test-00-of-01.safetensors").unlink()
    assert data.status("toy").state == "damaged"
    with pytest.raises(DataError, match="purecaps data fetch toy --force"):
        data.load("toy")


def test_an_unknown_name_is_refused_by_every_function() -> None:
    for function in (data.location, data.status, data.fetch, data.verify):
        with pytest.raises(UnknownNameError, match="did you mean fashion-mnist"):
            function("fashion-mist")


def test_an_empty_name_is_not_the_working_directory() -> None:
    with pytest.raises(ConfigError, match="name: expected a data set's name or a path, got ''"):
        data.load("")


def test_every_known_set_is_described_in_full() -> None:
    assert data.list_datasets() == ["cifar10", "fashion-mnist", "mnist"]
    for spec in specs.SPECS.values():
        assert len(spec.class_names) == 10
        assert len({*spec.sha256.values()}) == 4
        assert isinstance(spec.sources[0], WebFiles | WebArchive), "the public mirrors come first"


@pytest.mark.net
def test_real_mnist_arrives_whole(tmp_path: Path) -> None:
    dataset = data.load("mnist", root=tmp_path)
    assert (len(dataset.train), len(dataset.test), dataset.in_shape) == (60_000, 10_000, (1, 28, 28))
    assert dataset.train.labels.bincount().tolist() == [
        *(5923, 6742, 5958, 6131, 5842),
        *(5421, 5918, 6265, 5851, 5949),
    ]
    assert data.verify("mnist", tmp_path) == ()
    with np.load(Path(__file__).parents[1] / "assets" / "mnist_sample.npz", allow_pickle=False) as sample:
        assert np.array_equal(dataset.test.images[:200].numpy(), sample["images"])
        assert dataset.test.labels[:200].tolist() == sample["labels"].tolist()
    assert max(path.stat().st_size for path in (tmp_path / "mnist").iterdir()) < 25_000_000
