"""Memory that a step frees stays with the process for the next step."""

from __future__ import annotations

import ctypes

# glibc's names for what is set, from malloc.h, and numbers of bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 1 << 30


def keep_freed_memory() -> bool:
    """Has glibc keep up to 1 GiB of freed memory; whether it does.

    By default large blocks go back to the system when they are freed and are faulted in again, page by page, when they
    are next asked for: a third of a training step on a CPU. This is a setting of the whole process, so that a program
    makes it, not an operation. Elsewhere than on glibc it does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return all(mallopt(name, _KEPT) == 1 for name in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
