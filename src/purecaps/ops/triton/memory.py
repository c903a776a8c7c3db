"""Where kernels get the memory they write: one place, so that tests can poison it."""

from __future__ import annotations

import torch
from torch import Tensor


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Uninitialised memory; whoever asks for it writes every element."""
    return torch.empty(shape, dtype=dtype, device=device)
