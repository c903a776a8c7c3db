"""A run's folder: for one process at a time, and whether it holds a run."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from purecaps.errors import ConfigError
from purecaps.evaluate.trained import WEIGHTS
from purecaps.train.checkpoint import checkpoints

LOCK = ".lock"


@contextlib.contextmanager
def held(out: Path, *, new: bool = False) -> Iterator[Path]:
    """Gives a folder, made where it is not there, that no other process can hold until the block ends.

    The lock is the operating system's and goes with the process: a crash leaves nothing in the way. A folder that was
    made here and is still empty at the end is removed again.

    Args:
        out: the folder.
        new: takes `out`-2, `out`-3 and so on where there is one already.

    Raises:
        ConfigError: another process holds it, or it cannot be made.
    """
    try:
        folder, made = _make(out, new)
    except OSError as error:
        raise ConfigError(f"--out: expected a folder to write to, got {out}: {error.strerror}") from error
    lock = FileLock(folder / LOCK)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ConfigError(f"--out: expected a folder that no other run is using, got {folder}") from None
        try:
            yield folder
        finally:
            # Before it is let go: later, another process could hold the file that is removed.
            with contextlib.suppress(OSError):
                (folder / LOCK).unlink()
            lock.release()
    finally:
        for each in made:
            with contextlib.suppress(OSError):  # not empty, as it should be
                each.rmdir()


def holds_run(out: Path) -> bool:
    """Whether there is something to go on with or to keep: a checkpoint, or the weights of a finished run."""
    return any(
        (folder / WEIGHTS).exists() or checkpoints(folder / "checkpoints") for folder in (out, *out.glob("seed-*"))
    )


def _make(out: Path, new: bool) -> tuple[Path, list[Path]]:
    """The folder, and those that had to be made for it, the innermost first."""
    absent = [folder for folder in out.parents if not folder.exists()]
    out.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = out if number == 1 else out.with_name(f"{out.name}-{number}")
        try:
            folder.mkdir()  # of two processes, one makes it
        except FileExistsError:
            if new:
                continue
            if not folder.is_dir():
                raise
            return folder, []
        return folder, [folder, *absent]
    raise AssertionError("unreachable")
