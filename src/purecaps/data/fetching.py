"""Bringing a data set into the cache, once, from the first source that delivers it whole."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

from filelock import FileLock, Timeout

from purecaps.data import cache
from purecaps.data.decode import Arrays
from purecaps.data.progress import Report
from purecaps.data.specs import DatasetSpec
from purecaps.errors import DataError

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT}


def fetch(spec: DatasetSpec, root: Path, *, force: bool = False) -> None:
    """Makes sure that a sound cache of `spec` is under `root`; does nothing where one is.

    Sources are tried in turn, and what each delivers is held to the set's hashes. Everything is downloaded
    and written in a hidden folder under `root` that is removed whatever happens, so a fault leaves the cache
    as it was. A second process that wants the same set waits for the first, then finds its work.

    Args:
        spec: the data set.
        root: where caches are kept.
        force: fetch although a cache is there.

    Raises:
        DataError: no source delivered, or the disk is full; the message has every source that was tried.
    """
    report = Report()
    folder, staging = root / spec.name, root / f".{spec.name}.partial"
    attempts: list[str] = []
    if not force and _is_sound(folder, spec):
        return
    try:
        with _lock(spec, root, report):
            if not force and _is_sound(folder, spec):  # by the process that held the lock before
                return
            shutil.rmtree(staging, ignore_errors=True)  # a process that was killed may have left one
            try:
                arrays, source = _obtain(spec, staging, report, attempts)
                attempts.append(f"{source}: delivered")
                cache.write(staging / "cache", spec, arrays, source)
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
    report.say(f"{spec.name}: {spec.train_size + spec.test_size} images in {folder}")


def _obtain(spec: DatasetSpec, staging: Path, report: Report, attempts: list[str]) -> tuple[Arrays, str]:
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
    help_line = (
        "check the network, or copy the folder of that name from another machine's cache"
        f" (purecaps data where {spec.name}) to {staging.parent}"
    )
    raise DataError(_message(spec, "no source delivered it", attempts, help_line))


@contextlib.contextmanager
def _lock(spec: DatasetSpec, root: Path, report: Report) -> Iterator[None]:
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


def _message(spec: DatasetSpec, what: str, attempts: list[str], help_line: str) -> str:
    tried = "".join(f"\n  - {attempt}" for attempt in attempts)
    heading = "\nsources tried:" if attempts else ""
    return f"cannot fetch {spec.name}: {what}{heading}{tried}\n{help_line}"
