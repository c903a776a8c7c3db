"""Bringing a data set, or whatever else is fetched, into the cache once: from the first source that has it whole."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol
from urllib.error import URLError

from filelock import FileLock, Timeout

from purecaps.data import cache
from purecaps.data.decode import Arrays
from purecaps.data.progress import Report
from purecaps.data.sources import Source
from purecaps.data.specs import DatasetSpec
from purecaps.errors import DataError

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


class Fetchable(Protocol):
    """What can be fetched: its name, its sources and the check that what came is it, bit for bit."""

    @property
    def name(self) -> str: ...
    @property
    def sources(self) -> tuple[Source, ...]: ...
    def check(self, arrays: Arrays) -> None: ...


def fetch(spec: DatasetSpec, root: Path, *, force: bool = False) -> None:
    """Makes sure that a sound cache of `spec` is under `root`; does nothing where one is.

    Args:
        spec: the data set.
        root: where caches are kept.
        force: fetch although a cache is there.

    Raises:
        DataError: no source delivered, or the disk is full; the message has every source that was tried.
    """

    def write(folder: Path, arrays: Arrays, source: str) -> None:
        cache.write(folder, spec, arrays, source)

    if bring(spec, root, is_sound=lambda folder: _is_sound(folder, spec), write=write, force=force):
        Report().say(f"{spec.name}: {spec.train_size + spec.test_size} images in {root / spec.name}")


def bring(
    spec: Fetchable,
    root: Path,
    *,
    is_sound: Callable[[Path], bool],
    write: Callable[[Path, Arrays, str], None],
    force: bool = False,
) -> bool:
    """Makes sure that a sound ROOT/<name>/ is there, and tells whether it had to be fetched.

    Sources are tried in turn, and what each delivers is held to `spec.check`. Everything is downloaded
    and written in a hidden folder under `root` that is removed whatever happens, so a fault leaves the cache
    as it was. A second process that wants the same thing waits for the first, then finds its work.

    Args:
        spec: what to fetch.
        root: where caches are kept.
        is_sound: whether the folder that it is given holds all that `write` writes.
        write: writes arrays and their source's name into a new folder.
        force: fetch although it is there.
    """
    report = Report()
    folder, staging = root / spec.name, root / f".{spec.name}.partial"
    attempts: list[str] = []
    if not force and is_sound(folder):
        return False
    try:
        with _lock(spec, root, report):
            if not force and is_sound(folder):  # by the process that held the lock before
                return False
            shutil.rmtree(staging, ignore_errors=True)  # a process that was killed may have left one
            try:
                arrays, source = _obtain(spec, staging, report, attempts)
                attempts.append(f"{source}: delivered")
                write(staging / "cache", arrays, source)
                cache.install(staging / "cache", folder)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
    except OSError as fault:
        if fault.errno in _DISK_FULL:
            what = f"the disk that holds {root} is full"
        else:
            what = f"{root} cannot be written ({_reason(fault)})"
        help_line = "free some space there, or set PURECAPS_DATA to another folder"
        raise DataError(_message(spec, what, attempts, help_line)) from fault
    return True


def _obtain(spec: Fetchable, staging: Path, report: Report, attempts: list[str]) -> tuple[Arrays, str]:
    """The checked arrays and the name of the source that had them; notes each failure in `attempts`."""
    for index, source in enumerate(spec.sources):
        into = staging / f"source-{index}"
        into.mkdir(parents=True)
        report.say(f"fetching {spec.name} from {source}")
        try:
            arrays = source.decode(source.obtain(into, report))
            spec.check(arrays)
        # What a mirror serves may break a decoder in any way; the next source is tried whatever it was.
        except Exception as fault:
            attempts.append(f"{source}: {_reason(fault)}")
            if isinstance(fault, OSError) and fault.errno in _DISK_FULL:
                raise
            report.say(f"  failed: {_reason(fault)}")
        else:
            return arrays, str(source)
        finally:
            shutil.rmtree(into, ignore_errors=True)
    folder = staging.parent / spec.name
    help_line = f"check the network, or copy {folder} from a machine that has it"
    raise DataError(_message(spec, "no source delivered it", attempts, help_line))


@contextlib.contextmanager
def _lock(spec: Fetchable, root: Path, report: Report) -> Iterator[None]:
    root.mkdir(parents=True, exist_ok=True)
    lock = FileLock(root / f".{spec.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        report.say(f"waiting for another process that is fetching {spec.name}")
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _is_sound(folder: Path, spec: DatasetSpec) -> bool:
    if not cache.exists(folder):
        return False
    try:
        cache.read_manifest(folder, spec)
    except DataError:
        return False
    return True


def _reason(fault: Exception) -> str:
    if isinstance(fault, URLError) and isinstance(fault.reason, Exception):
        return _reason(fault.reason)
    if isinstance(fault, OSError) and fault.strerror:
        return fault.strerror if fault.filename is None else f"{fault.strerror}: {fault.filename}"
    return str(fault) or type(fault).__name__


def _message(spec: Fetchable, what: str, attempts: list[str], help_line: str) -> str:
    tried = "".join(f"\n  - {attempt}" for attempt in attempts)
    heading = "\nsources tried:" if attempts else ""
    return f"cannot fetch {spec.name}: {what}{heading}{tried}\n{help_line}"
