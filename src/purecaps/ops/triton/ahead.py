# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""Kernels that are launched while the one ahead of them still runs: CUDA's programmatic dependent launch.

A step has some 25 kernels of 3 to 30 us one after the other, and from the end of one to the first load of the next a
microsecond passes. With this the next one's programs are on the device by then. They wait for all that the kernel ahead
has written, so results are the same; what came before that kernel has ended too, because it waited likewise. So no
kernel may touch memory before it waits: one from elsewhere that did, behind one of these, would be a race.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from purecaps.ops.cuda.nvrtc import driver_version

AHEAD = True
# Hopper has the instructions; graphs have had edges for such launches since CUDA 12.3.
LEAST_CAPABILITY, LEAST_DRIVER = (9, 0), 12030


@triton.jit
def wait_for_inputs(AHEAD: tl.constexpr):
    """Before a kernel's first load: lets the next kernel begin, and waits for the one ahead."""
    if AHEAD:
        gdc_launch_dependents()
        gdc_wait()


def launched_ahead(device: torch.device) -> dict[str, bool]:
    """Options of a launch: the kernel's own, and Triton's."""
    return {"AHEAD": True, "launch_pdl": True} if AHEAD and _knows(device) else {"AHEAD": False}


@functools.cache
def _knows(device: torch.device) -> bool:
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < LEAST_CAPABILITY:
        return False
    return driver_version() >= LEAST_DRIVER
