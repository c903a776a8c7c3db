"""What autocast asks for on a device, of which not all know it."""

from __future__ import annotations

import torch


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype that autocast multiplies in on a type of device; None where it is off, or does not exist ("meta")."""
    # Not torch.amp.is_autocast_available, which torch.compile cannot trace in torch 2.11.
    if device == "meta" or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)
