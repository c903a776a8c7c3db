"""Freed memory stays with the process, where its allocator is glibc's."""

import ctypes
import platform
import resource

import pytest
import torch

from purecaps.malloc import keep_freed_memory

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
