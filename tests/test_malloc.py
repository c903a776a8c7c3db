"""Freed memory stays with the process, where its allocator is glibc's."""

import ctypes
import platform
import resource

import pytest
import torch

from purecaps.malloc import keep_freed_memory

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of malloc.h

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs glibc")


def least_faults_of_a_large_block():
    """Page faults of allocating 64 MB and writing to all of it; the least of several, since a small block may lie in
    the way of using the last one again."""
    found = []
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        torch.ones(16 << 20)
        found.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return min(found)


@glibc
def test_a_block_that_was_freed_is_not_faulted_in_again():
    assert keep_freed_memory()
    assert least_faults_of_a_large_block() < 1000  # of 16,384 pages


def test_other_allocators_are_left_alone(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()


class Glibc:
    """Takes a threshold for mmap up to `most` and notes what it took."""

    def __init__(self, most):
        self.most, self.taken = most, []

    def mallopt(self, name, value):
        if name == MMAP_THRESHOLD and value > self.most:
            return 0
        self.taken.append((name, value))
        return 1


@pytest.mark.parametrize(
    ("most", "taken"),
    [
        (1 << 62, [(MMAP_THRESHOLD, 1 << 30), (TRIM_THRESHOLD, 1 << 30)]),
        (32 << 20, [(MMAP_THRESHOLD, 32 << 20), (TRIM_THRESHOLD, 1 << 30)]),  # up to glibc 2.34
        (0, []),
    ],
)
def test_trimming_is_touched_only_after_the_threshold_for_mmap_was_raised(most, taken, monkeypatch):
    library = Glibc(most)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    assert keep_freed_memory() == bool(taken)
    assert library.taken == taken
