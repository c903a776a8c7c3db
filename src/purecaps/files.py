"""Writing files so that a fault leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary path beside `path`; what is written there takes its place when the block ends.

    A full disk, an exception or a kill inside the block leaves `path` as it was; on an exception the
    temporary file is removed too.

    Args:
        path: the file to write; its folder is made if it is not there.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files private to the user; a result should be as readable as any other file.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        _sync(temporary)
        os.replace(temporary, target)
    except BaseException as fault:
        temporary.unlink(missing_ok=True)
        if isinstance(fault, OSError) and fault.filename in (None, name):
            fault.filename = str(target)  # what the user asked for, not the temporary file
        raise
    # The rename itself is durable only once the folder is written; not every platform can open one.
    with contextlib.suppress(OSError):
        _sync(target.parent)


def write_json(path: Path, values: dict[str, Any]) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(values, indent=2) + "\n")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
