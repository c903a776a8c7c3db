from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from fake_web import (
    ARRAYS,
    FILES,
    FakeWeb,
    assert_fetch_fails,
    assert_nothing_left,
    assert_toy_cache,
    closed_port,
    forged_labels,
    toy_spec,
)

from purecaps.data import cache, fetching, sources
from purecaps.data.decode import digest
from purecaps.errors import DataError


def test_a_good_source_fills_the_cache(web: FakeWeb, tmp_path: Path) -> None:
    spec = toy_spec(web.source())
    fetching.fetch(spec, tmp_path)
    assert_toy_cache(tmp_path, spec)
    assert web.requests == [f"/good/{name}" for name in FILES]


def test_a_sound_cache_is_not_fetched_again_unless_forced(web: FakeWeb, tmp_path: Path) -> None:
    spec = toy_spec(web.source())
    fetching.fetch(spec, tmp_path)
    fetching.fetch(spec, tmp_path)
    assert len(web.requests) == 4
    fetching.fetch(spec, tmp_path, force=True)
    assert len(web.requests) == 8
    assert_toy_cache(tmp_path, spec)


def test_sources_are_tried_in_turn_until_one_delivers(
    web: FakeWeb, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = (closed_port(), web.source("nowhere"), web.source("truncated"), forged_labels())
    spec = toy_spec(*bad, web.source())
    fetching.fetch(spec, tmp_path)
    assert_toy_cache(tmp_path, spec)
    assert str(web.source()) in json.loads((tmp_path / "toy" / "manifest.json").read_text())["source"]
    said = capsys.readouterr()
    assert said.out == ""
    assert "failed: Connection refused" in said.err
    assert "failed: HTTP Error 404: Not Found" in said.err


def test_the_failure_lists_every_source_and_its_reason(web: FakeWeb, tmp_path: Path) -> None:
    spec = toy_spec(closed_port(), web.source("nowhere"), web.source("truncated"), web.source("empty"), forged_labels())
    size = len(web.files[FILES[0]])
    assert_fetch_fails(
        spec,
        tmp_path,
        "no source delivered it",
        "http://127.0.0.1:9/: Connection refused",
        f"{web.source('nowhere')}: HTTP Error 404: Not Found",
        f"{web.source('truncated')}: truncated: got {size - 5} of {size} bytes of {FILES[0]}",
        f"{web.source('empty')}: truncated: got 0 of {size} bytes",
        f"the forger: wrong hash of test_labels: expected sha256 {digest(ARRAYS['test_labels'])}, got",
    )
    assert_nothing_left(tmp_path)


def test_flipped_bits_do_not_get_past_the_checks(web: FakeWeb, tmp_path: Path) -> None:
    assert_fetch_fails(toy_spec(web.source("forged")), tmp_path, str(web.source("forged")))
    assert_nothing_left(tmp_path)


@pytest.mark.parametrize("writer", ["_write_part", "install"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_clear_error_and_leaves_nothing(
    web: FakeWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, code: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(cache, writer, full)
    spec = toy_spec(closed_port(), web.source())
    assert_fetch_fails(
        spec,
        tmp_path,
        f"the disk that holds {tmp_path} is full",
        "http://127.0.0.1:9/: Connection refused",
        f"{web.source()}: delivered",
        "PURECAPS_DATA",
    )
    assert_nothing_left(tmp_path)


def test_a_disk_that_fills_up_during_the_download_ends_the_search(
    web: FakeWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(sources, "download", full)
    assert_fetch_fails(toy_spec(web.source(), closed_port()), tmp_path, "is full", "No space left on device")
    assert_nothing_left(tmp_path)


def test_a_failed_forced_fetch_keeps_the_cache_that_was_there(web: FakeWeb, tmp_path: Path) -> None:
    spec = toy_spec(web.source())
    fetching.fetch(spec, tmp_path)
    with pytest.raises(DataError):
        fetching.fetch(toy_spec(closed_port()), tmp_path, force=True)
    assert_toy_cache(tmp_path, spec)


def test_an_interrupted_fetch_leaves_nothing(web: FakeWeb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "_write_part", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetching.fetch(toy_spec(web.source()), tmp_path)
    assert_nothing_left(tmp_path)


def test_what_a_killed_process_left_is_cleared_away(web: FakeWeb, tmp_path: Path) -> None:
    litter = tmp_path / ".toy.partial" / "source-0" / "half.gz"
    litter.parent.mkdir(parents=True)
    litter.write_bytes(b"half")
    spec = toy_spec(web.source())
    fetching.fetch(spec, tmp_path)
    assert_toy_cache(tmp_path, spec)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="a folder is writable whatever its mode")
def test_a_root_that_cannot_be_written_is_named(web: FakeWeb, tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert_fetch_fails(toy_spec(web.source()), tmp_path / "sub", f"{tmp_path / 'sub'} cannot be written")


def test_a_root_that_is_a_file_is_named(web: FakeWeb, tmp_path: Path) -> None:
    root = tmp_path / "file"
    root.write_bytes(b"")
    assert_fetch_fails(toy_spec(web.source()), root, f"{root} cannot be written", "PURECAPS_DATA")


@pytest.mark.usefixtures("no_proxy")
def test_two_processes_fetch_once(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from fake_web import FILES, decode_idx, toy_spec; from purecaps.data import fetching\n"
        "from purecaps.data.sources import WebFiles\n"
        "spec = toy_spec(WebFiles(base=sys.argv[2], files=FILES, decode=decode_idx))\n"
        "print('ready', flush=True); sys.stdin.readline(); fetching.fetch(spec, Path(sys.argv[3]))\n"
    )
    with FakeWeb(slow=0.2) as slow:
        arguments = [
            sys.executable,
            "-c",
            script,
            str(Path(__file__).parent),
            slow.source().base,
            str(tmp_path),
        ]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        children = [subprocess.Popen(arguments, text=True, **pipes) for _ in range(2)]
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        said = [child.communicate(timeout=60)[1] for child in children]
        assert [child.returncode for child in children] == [0, 0], said
        assert len(slow.requests) == 4
    assert sum("waiting for another process" in text for text in said) == 1
    assert_toy_cache(tmp_path, toy_spec())
