"""A network as one kernel: compiled for a device, launched on images."""

from __future__ import annotations

import torch
from torch import Tensor

from purecaps.ops.cuda.device import make_kernel, multiprocessors, shared_memory
from purecaps.ops.cuda.layout import Layout
from purecaps.ops.cuda.nvrtc import Kernel

NAME = "network"


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
        self._blocks = multiprocessors(self._device)
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
            shared = self._layout.shared_bytes(self._warps)
            self._kernels[bytes_in] = make_kernel(source, NAME, self._device, shared=shared, threads=32 * self._warps)
        return self._kernels[bytes_in]
