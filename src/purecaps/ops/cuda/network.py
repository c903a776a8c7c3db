"""A network as one kernel: compiled for a device, launched on images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from purecaps.ops.cuda.layout import Layout
from purecaps.ops.cuda.nvrtc import Kernel, compile_program
from purecaps.ops.cuda.nvrtc import missing as nvrtc_missing

NAME = "network"
LEAST_CAPABILITY = (8, 0)  # of products of 16 x 8 x 16 in half precision


def missing(device: torch.device) -> str | None:
    """What this machine lacks for the kernel; None where it can run."""
    if device.type != "cuda":
        return f"device {device.type}, only cuda is covered"
    capability = torch.cuda.get_device_capability(device)
    if capability < LEAST_CAPABILITY:
        return "compute capability {}.{}, at least {}.{} is needed".format(*capability, *LEAST_CAPABILITY)
    return nvrtc_missing()


def shared_memory(device: torch.device) -> int:
    """Bytes that a block may have."""
    properties: Any = torch.cuda.get_device_properties(device)  # torch's stubs leave this one out
    return int(properties.shared_memory_per_block_optin)


class Network:
    """A network on a device.

    Args:
        layout: the network, its weights on the device.
        classes_out: give the class of the longest capsule, not all lengths.
        warps: in a block; None takes as many as fit.
    """

    def __init__(self, layout: Layout, *, classes_out: bool, warps: int | None = None) -> None:
        self._layout, self._classes_out = layout, classes_out
        self._device = layout.weights.device
        self._warps = warps or layout.warps(shared_memory(self._device))
        properties = torch.cuda.get_device_properties(self._device)
        self._blocks = int(properties.multi_processor_count)
        self._architecture = f"sm_{properties.major}{properties.minor}"
        self._kernels: dict[bool, Kernel] = {}
        self._kernel(bytes_in=True)  # now, and not in the middle of a graph's capture; floating images are rarer

    def __call__(self, images: Tensor) -> Tensor:
        """Lengths [B, K] in float32, or classes [B] in int64.

        Args:
            images: [B, 1, H, W], uint8, or floating in [0, 1].
        """
        batch, layout = images.shape[0], self._layout
        if self._classes_out:
            out = torch.empty(batch, dtype=torch.int64, device=images.device)
        else:
            out = torch.empty(batch, layout.classes, device=images.device)
        if not batch:
            return out
        bytes_in = images.dtype == torch.uint8
        images = images.contiguous() if bytes_in else images.float().contiguous()
        if images.data_ptr() % 16:  # it is read 16 bytes at a time
            images = images.clone()
        blocks = min(self._blocks, batch)
        with torch.cuda.device(self._device):
            self._kernel(bytes_in=bytes_in)(blocks, images, layout.weights, layout.bias, out, batch, layout.slope)
        return out

    def _kernel(self, *, bytes_in: bool) -> Kernel:
        if bytes_in not in self._kernels:
            source = self._layout.source(self._warps, bytes_in=bytes_in, classes_out=self._classes_out)
            with torch.cuda.device(self._device):
                torch.cuda.current_stream().synchronize()  # the driver knows the device from here on
                program = compile_program(source, self._architecture)
                shared = self._layout.shared_bytes(self._warps)
                self._kernels[bytes_in] = Kernel(program, NAME, shared=shared, threads=32 * self._warps)
        return self._kernels[bytes_in]
