from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_web import ARRAYS, FakeWeb, assert_toy_cache, toy_spec

from purecaps.data import cache, fetching
from purecaps.errors import DataError


def damage_remove(path: Path) -> None:
    path.unlink()


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("file", ["train-00-of-01.safetensors", "test-00-of-01.safetensors"])
@pytest.mark.parametrize(("damage", "said"), [(damage_remove, "it is missing"), (damage_truncate, "bytes, got")])
def test_a_damaged_part_is_named_and_mended_by_a_fetch(
    web: FakeWeb, tmp_path: Path, file: str, damage: object, said: str
) -> None:
    spec = toy_spec(web.source())
    fetching.fetch(spec, tmp_path)
    part = tmp_path / "toy" / file
    assert callable(damage)
    damage(part)
    with pytest.raises(DataError) as caught:
        cache.read(tmp_path / "toy", spec)
    for piece in (str(part), said, "purecaps data fetch toy --force"):
        assert piece in str(caught.value)
    fetching.fetch(spec, tmp_path)
    assert_toy_cache(tmp_path, spec)


def test_a_broken_manifest_is_named(web: FakeWeb, tmp_path: Path) -> None:
    spec = toy_spec(web.source())
    fetching.fetch(spec, tmp_path)
    (tmp_path / "toy" / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest\.json: it cannot be read"):
        cache.read(tmp_path / "toy", spec)


def test_verify_finds_one_flipped_bit(web: FakeWeb, tmp_path: Path) -> None:
    spec = toy_spec(web.source())
    fetching.fetch(spec, tmp_path)
    part = tmp_path / "toy" / "train-00-of-01.safetensors"
    contents = bytearray(part.read_bytes())
    contents[-1] ^= 1
    part.write_bytes(contents)
    (fault,) = cache.verify(tmp_path / "toy", spec)
    assert str(part) in fault
    assert "expected sha256" in fault


def test_verify_holds_the_content_to_the_sets_own_hash(web: FakeWeb, tmp_path: Path) -> None:
    cache.write(tmp_path / "toy", toy_spec(), ARRAYS | {"test_labels": np.zeros(4, np.uint8)}, "a liar")
    (fault,) = cache.verify(tmp_path / "toy", toy_spec())
    assert "wrong hash of test_labels" in fault


def test_a_large_set_is_cut_into_even_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "PART_BYTES", 4 * 5 * 7)
    cache.write(tmp_path / "toy", toy_spec(), ARRAYS, "here")
    names = sorted(path.name for path in (tmp_path / "toy").glob("*.safetensors"))
    assert names == ["test-00-of-01.safetensors", *(f"train-0{i}-of-03.safetensors" for i in range(3))]
    assert_toy_cache(tmp_path, toy_spec())


def test_files_of_others_in_the_cache_folder_are_left_alone(web: FakeWeb, tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "notes.txt").write_text("mine")
    (tmp_path / "toy" / "train-00-of-07.safetensors").write_bytes(b"a part of an older cache")
    fetching.fetch(toy_spec(web.source()), tmp_path)
    assert (tmp_path / "toy" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "toy" / "train-00-of-07.safetensors").exists()


@pytest.mark.parametrize(
    ("platform", "environment", "expected"),
    [
        ("linux", {"PURECAPS_DATA": "/data", "XDG_CACHE_HOME": "/xdg"}, "/data"),
        ("linux", {"XDG_CACHE_HOME": "/xdg"}, "/xdg/purecaps"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "/home/me/.cache/purecaps"),
        ("linux", {}, "/home/me/.cache/purecaps"),
        ("darwin", {"XDG_CACHE_HOME": "/xdg"}, "/home/me/Library/Caches/purecaps"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/purecaps"),
        ("win32", {}, "/home/me/AppData/Local/purecaps"),
    ],
)
@pytest.mark.skipif(os.name == "nt", reason="expects POSIX paths")
def test_the_cache_is_where_each_platform_keeps_caches(
    monkeypatch: pytest.MonkeyPatch, platform: str, environment: dict[str, str], expected: str
) -> None:
    for name in ("PURECAPS_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"HOME": "/home/me", **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache.default_root() == Path(expected)
