"""Where kernels get the memory they write: one place, so that tests can poison it."""

from __future__ import annotations

import torch
from torch import Tensor

from purecaps.ops.triton.problem import memory_order


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised memory; whoever asks for it writes every element."""
    return torch.empty(shape, dtype=dtype, device=device)


def empty_as(w: Tensor) -> Tensor:
    """The same for a tensor like w, in w's memory layout."""
    order = memory_order(w)
    stored = empty(tuple(w.shape[axis] for axis in order), w.dtype, w.device)
    return stored.permute(*(order.index(axis) for axis in range(w.dim())))
