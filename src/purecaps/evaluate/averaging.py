"""Test-time averaging: a network's scores of an image, averaged over windows of the image and their mirror images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError

CENTRE = ((0, 0),)
NINE = tuple((down, across) for down in (-2, 0, 2) for across in (-2, 0, 2))


class AveragedViews(nn.Module):
    """A network of `size` images as one of larger images: the mean of its scores over several views.

    Class lengths are averaged as they are; so are logits.

    Args:
        model: maps images [B, C, *size] to scores [B, K].
        size: (height, width) of a window.
        shifts: how far down and across each window lies from the centred one, in pixels.
        mirror: whether every window is seen mirrored as well.

    Shape:
        images [B, C, H, W] -> scores [B, K]
    """

    def __init__(
        self,
        model: nn.Module,
        size: tuple[int, int],
        *,
        shifts: Sequence[tuple[int, int]] = CENTRE,
        mirror: bool = True,
    ) -> None:
        super().__init__()
        if not shifts:
            raise ConfigError("shifts: expected at least one window, got none")
        self.model, self.size, self.shifts, self.mirror = model, size, tuple(shifts), mirror

    def forward(self, images: Tensor) -> Tensor:
        total: Tensor | None = None
        for down, across in self.shifts:
            window = self._window(images, down, across)
            for view in (window, window.flip(-1)) if self.mirror else (window,):
                scores = self.model(view)
                total = scores if total is None else total + scores
        assert total is not None
        return total / (len(self.shifts) * (2 if self.mirror else 1))

    def _window(self, images: Tensor, down: int, across: int) -> Tensor:
        corner = []
        for side, window, shift in zip(images.shape[-2:], self.size, (down, across), strict=True):
            first = (side - window) // 2 + shift
            if not 0 <= first <= side - window:
                raise ConfigError(
                    f"shifts: expected windows of {self.size[0]}x{self.size[1]} inside images of "
                    f"{images.shape[-2]}x{images.shape[-1]}, got one {down} down and {across} across from the centre"
                )
            corner.append(first)
        top, left = corner
        # Networks are quickest on dense images; a view of a larger one is none.
        return images[..., top : top + self.size[0], left : left + self.size[1]].contiguous(
            memory_format=torch.contiguous_format
        )
