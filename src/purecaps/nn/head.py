"""From the last layer's capsules to one score a class."""

from __future__ import annotations

from torch import Tensor, nn

from purecaps.errors import ConfigError, unknown_name
from purecaps.ops.reference import length
from purecaps.ops.validation import shape_text

POOLS = ("mean", "max")


class LengthHead(nn.Module):
    """A class's score is the length of its capsule.

    Where the last map is larger than 1x1, each position has a capsule of its own for every class: their lengths
    are averaged ("mean": every position votes) or the longest counts ("max": one sighting is enough).

    Args:
        pool: "mean" or "max".

    Shape:
        [B, O, H, W, g, m, p] -> [B, O]
    """

    def __init__(self, pool: str = "mean") -> None:
        super().__init__()
        if pool not in POOLS:
            raise unknown_name("pool", pool, POOLS)
        self.pool = pool

    def forward(self, capsules: Tensor) -> Tensor:
        if capsules.dim() != 7:
            raise ConfigError(
                f"capsules: expected 7 dimensions [B, O, H, W, g, m, p], got {shape_text(capsules.shape)}"
            )
        lengths = length(capsules, (-3, -2, -1), keepdim=False)
        pooled: Tensor = lengths.mean(dim=(2, 3)) if self.pool == "mean" else lengths.amax(dim=(2, 3))
        return pooled

    def extra_repr(self) -> str:
        return f"{self.pool} over positions"
