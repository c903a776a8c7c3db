"""Running out of memory without falling over."""

from __future__ import annotations

import contextlib
import gc
import re
from collections.abc import Iterator
from pathlib import Path

import torch


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception, possibly one of a compiler around it, says that memory ran out."""
    text = str(error)
    return isinstance(error, MemoryError) or any(
        words in text for words in ("out of memory", "can't allocate memory", "bad_alloc")
    )


def free(device: torch.device) -> None:
    """Gives a GPU's memory back that nothing refers to, so that the next contender finds it as the first did."""
    if device.type == "cuda":
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@contextlib.contextmanager
def within_memory(device: torch.device) -> Iterator[None]:
    """On Linux without a GPU: an allocation beyond the memory there is fails, and the process is not killed for it."""
    found = _kilobytes("/proc/self/status", "VmData"), _kilobytes("/proc/meminfo", "MemAvailable")
    if device.type == "cuda" or None in found:
        yield
        return
    import resource  # not on every platform

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = 1024 * sum(each for each in found if each is not None)
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _kilobytes(path: str, name: str) -> int | None:
    try:
        match = re.search(rf"^{name}:\s*(\d+) kB", Path(path).read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if match is None else int(match[1])
