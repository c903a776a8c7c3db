"""Memory that a step frees stays with the process for the next step."""

from __future__ import annotations

import ctypes

# glibc's names for what is set, from malloc.h, and numbers of bytes.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 1 << 30
_MOST_BEFORE_2_35 = 32 << 20


def keep_freed_memory() -> bool:
    """Has glibc keep up to 1 GiB of freed memory, in blocks of up to 32 MiB before glibc 2.35; whether it does.

    By default large blocks go back to the system when they are freed and are faulted in again, page by page, when they
    are next asked for: a third of a training step on a CPU. This is a setting of the whole process, so that a program
    makes it, not an operation. Elsewhere than on glibc it does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    # Whichever is set first stops glibc from raising the threshold for mmap by itself, from 128 KiB. So that one is set
    # first, as high as this version takes it, and nothing else where it cannot be.
    raised = any(mallopt(_MMAP_THRESHOLD, most) == 1 for most in (_KEPT, _MOST_BEFORE_2_35))
    return raised and bool(mallopt(_TRIM_THRESHOLD, _KEPT) == 1)
