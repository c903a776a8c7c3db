"""Files are written whole or not at all."""

import os
import stat

import pytest

from purecaps.files import atomic_write


def test_the_new_content_takes_the_place_of_the_old(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    for text in ("old", "new"):
        with atomic_write(path) as temporary:
            temporary.write_text(text)
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("fault", [RuntimeError("broken"), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_fault_leaves_the_old_content_and_nothing_else(tmp_path, fault):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write() -> None:
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise fault

    with pytest.raises(type(fault)):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_names_the_file_that_was_asked_for(tmp_path):
    with pytest.raises(OSError, match="No space left") as raised, atomic_write(tmp_path / "file.txt"):
        raise OSError(28, "No space left on device")
    assert raised.value.filename == str(tmp_path / "file.txt")


def test_a_written_file_has_the_usual_permissions(tmp_path):
    before = os.umask(0o022)
    try:
        with atomic_write(tmp_path / "file.txt") as temporary:
            temporary.write_text("x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file.txt").stat().st_mode) == 0o644
