"""What a device offers to kernels in CUDA C++, and kernels made for it."""

from __future__ import annotations

import functools
from typing import Any

import torch

from purecaps.ops.cuda import nvrtc
from purecaps.ops.cuda.nvrtc import Kernel, compile_program

LEAST_CAPABILITY = (8, 0)  # of products of 16 x 8 x 16 in half precision, and of products in TF32


@functools.cache
def missing(device: torch.device) -> str | None:
    """What this machine lacks for the kernels; None where they can run."""
    if device.type != "cuda":
        return f"device {device.type}, only cuda is covered"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return "compute capability {}.{}, at least {}.{} is needed".format(*capability, *LEAST_CAPABILITY)
    return nvrtc.missing()


@functools.cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a block may have."""
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs leave this one out
    return int(properties.shared_memory_per_block_optin)


@functools.cache
def multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def make_kernel(source: str, name: str, device: torch.device, *, shared: int, threads: int) -> Kernel:
    """A function of a program, compiled for a device.

    Args:
        source: the program.
        name: of the function, declared extern "C".
        device: a CUDA device.
        shared: bytes of shared memory that a block is given.
        threads: in a block.
    """
    major, minor = torch.cuda.get_device_capability(device)
    with torch.cuda.device(device):
        if not torch.cuda.is_current_stream_capturing():
            torch.cuda.current_stream().synchronize()  # the driver knows the device from here on
        return Kernel(compile_program(source, f"sm_{major}{minor}"), name, shared=shared, threads=threads)
