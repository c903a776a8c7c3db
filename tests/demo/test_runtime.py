"""onnxruntime-web: from the cache, or from the first source that has it whole."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from purecaps.data.sources import WebFiles
from purecaps.demo.runtime import MODULE, SPEC, WASM, RuntimeSpec, load_runtime, read_files
from purecaps.errors import DataError

FILES = {MODULE: b"export const answer = 42;\n", WASM: b"\0asm\1\0\0\0"}


class Shelf(WebFiles):
    """A source that has its files at hand."""

    def obtain(self, into: Path, report) -> Path:
        for name, data in FILES.items():
            (into / name).write_bytes(data.replace(b"42", self.base.encode()))
        return into


def shelf(answer: str) -> Shelf:
    return Shelf(base=answer, files=tuple(FILES), decode=read_files)


def spec(*sources: Shelf) -> RuntimeSpec:
    return RuntimeSpec("runtime-0", {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}, sources)


def test_it_is_fetched_once_from_the_first_source_that_has_it_right(tmp_path, capsys):
    assert load_runtime(tmp_path, spec(shelf("forged"), shelf("42"))) == FILES
    said = capsys.readouterr().err
    assert "fetching runtime-0 from forged\n  failed: wrong hash of ort.wasm.bundle.min.mjs: expected sha256" in said
    assert "fetching runtime-0 from 42\n" in said
    assert load_runtime(tmp_path, spec()) == FILES  # no source is needed any more
    assert capsys.readouterr().err == ""
    assert {path.name for path in (tmp_path / "runtime-0").iterdir()} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_fetched_anew(tmp_path, name):
    load_runtime(tmp_path, spec(shelf("42")))
    (tmp_path / "runtime-0" / name).write_bytes(b"half of i")
    assert load_runtime(tmp_path, spec(shelf("42"))) == FILES


def test_where_no_source_has_it_the_error_says_which_were_tried_and_what_to_do(tmp_path):
    with pytest.raises(DataError) as error:
        load_runtime(tmp_path, spec(shelf("forged"), shelf("worse")))
    text = str(error.value)
    assert text.startswith("cannot fetch runtime-0: no source delivered it\nsources tried:\n  - forged: wrong hash")
    assert "\n  - worse: wrong hash" in text
    assert text.endswith(f"copy {tmp_path / 'runtime-0'} from a machine that has it")
    assert not (tmp_path / "runtime-0").exists()


def test_public_mirrors_come_before_the_package_registry():
    assert [type(source).__name__ for source in SPEC.sources] == ["WebFiles", "WebFiles", "NpmPackage"]


@pytest.mark.net
def test_the_real_files_are_what_their_hashes_say():
    assert {name: len(data) for name, data in load_runtime().items()} == {MODULE: 73_054, WASM: 14_239_897}
