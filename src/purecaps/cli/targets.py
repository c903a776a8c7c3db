"""Whether what a verb is to write can be written, asked before hours of work rather than after."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from purecaps.errors import ConfigError


def check_file(option: str, path: Path | None, suffixes: Sequence[str] = ()) -> None:
    """Refuses a path where no file could be written; nothing is made yet.

    Args:
        option: what the user gave it by, such as "--out".
        path: the file; None where none was given.
        suffixes: how its name may end; any way where there are none.
    """
    if path is None:
        return
    if suffixes and path.suffix.lower() not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise ConfigError(f"{option}: expected a file name ending in {known}, got {str(path)!r}")
    if path.is_dir():
        raise ConfigError(f"{option}: expected a file to write, got {path}, which is a folder")
    _check_place(option, path)


def check_folder(option: str, path: Path | None) -> None:
    """As `check_file`, of a folder to write to."""
    if path is not None:
        _check_place(option, path / "file")


def _check_place(option: str, path: Path) -> None:
    """The folder of a file, or what is there of it, must be a folder that files can be made in."""
    there = next(folder for folder in path.absolute().parents if folder.exists())
    if not there.is_dir():
        raise ConfigError(f"{option}: expected a folder to write to, got {path.parent}: {there} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"{option}: expected a folder to write to, got {path.parent}: {there} may not be written to")
