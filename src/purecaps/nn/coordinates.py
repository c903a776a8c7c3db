"""Coordinate addition: votes that know where on the map their child stands."""

from __future__ import annotations

import torch
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops.validation import shape_text


def add_coordinates(votes: Tensor, *, matrix: bool) -> Tensor:
    """Adds the child's place to two numbers of each of its votes (Hinton et al. 2018, section 4).

    The place is that of its centre on the map as a fraction, ((row + 1/2) / H, (column + 1/2) / W). Matrices take row
    and column in the first two numbers of their right-hand column, as in the paper; vectors in their first two.

    Args:
        votes: [..., H, W, C, O, D].
        matrix: whether D is a square matrix, row-major.
    """
    if votes.dim() < 5:
        raise ConfigError(f"votes: expected [..., H, W, C, O, D], got {shape_text(votes.shape)}")
    H, W, _, _, D = votes.shape[-5:]
    side = round(D**0.5)
    at_row, at_column = (side - 1, 2 * side - 1) if matrix else (0, 1)
    if at_column >= D or (matrix and side * side != D):
        kind = "a square number of at least 4" if matrix else "at least 2"
        raise ConfigError(f"votes: expected poses of {kind} numbers to add coordinates to, got {D}")
    numbers = torch.arange(D, device=votes.device)
    rows = ((torch.arange(H, device=votes.device) + 0.5) / H).to(votes.dtype)
    columns = ((torch.arange(W, device=votes.device) + 0.5) / W).to(votes.dtype)
    place = rows[:, None, None] * (numbers == at_row) + columns[None, :, None] * (numbers == at_column)  # [H, W, D]
    return votes + place[:, :, None, None, :]
