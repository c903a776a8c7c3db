"""The windows of a convolutional capsule layer, and how parents of overlapping windows share a child."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops.geometry import Geometry, Pair


def check_map(size: Pair, geometry: Geometry, kernel: Pair) -> None:
    """Refuses a map that no window fits into."""
    if min(geometry.out_size(size, kernel)) < 1:
        least = geometry.smallest_input((1, 1), kernel)
        raise ConfigError(
            f"poses: expected a map of at least {least[0]}x{least[1]} for {kernel[0]}x{kernel[1]} windows with "
            f"padding {geometry.padding}, got {size[0]}x{size[1]}"
        )


def windows(capsules: Tensor, geometry: Geometry, kernel: Pair) -> Tensor:
    """The capsules that each window sees: [B, H, W, C, D] -> [B, H', W', kh*kw*C, D].

    Padding adds capsules of zeros. A window's children are in the order row, column, channel.
    """
    (stride_h, stride_w), (pad_h, pad_w), _ = geometry
    padded = F.pad(capsules, (0, 0, 0, 0, pad_w, pad_w, pad_h, pad_h))
    cut = padded.unfold(1, kernel[0], stride_h).unfold(2, kernel[1], stride_w)  # [B, H', W', C, D, kh, kw]
    return cut.permute(0, 1, 2, 5, 6, 3, 4).flatten(3, 5)


class MapCompetition:
    """Logarithms of the softmax over all the parents that see a child, those of other windows included.

    In a convolutional layer a child lies in several windows. Taken exactly, it is shared out among the parents of all
    of them (Hinton et al. 2018, section 4), and not once in each window. Written with logarithms of sums: the
    windows' own sums are laid over the map, summed for each child, and read back by each window.

    Args:
        kernel: (height, width) of a window.
        stride: step between windows.
        types_compete: False shares a child among the parents of one type alone, once for each type.
    """

    def __init__(self, kernel: Pair, stride: Pair, *, types_compete: bool = True) -> None:
        self.kernel, self.stride, self.types_compete = kernel, stride, types_compete

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits [..., H', W', kh*kw*C, O] -> logarithms of the coefficients, of the same shape."""
        kh, kw = self.kernel
        rows, columns = logits.shape[-4:-2]
        # [..., H', W', kh*kw, C], or C*O for C where each type of parent is by itself
        summed = logits.logsumexp(dim=-1, keepdim=True) if self.types_compete else logits
        within = summed.unflatten(-2, (kh * kw, -1)).flatten(-2)
        offsets = [(i, j) for i in range(kh) for j in range(kw)]
        laid = [self._lay(within[..., n, :], offset) for n, offset in enumerate(offsets)]
        total = torch.stack(laid).logsumexp(dim=0)  # [..., H, W, C]
        down, right = self.stride[0] * (rows - 1) + 1, self.stride[1] * (columns - 1) + 1
        read = [
            total[..., i : i + down : self.stride[0], j : j + right : self.stride[1], :] for i, j in offsets
        ]  # kh*kw times [..., H', W', C]
        return logits - torch.stack(read, dim=-2).reshape(summed.shape)

    def _lay(self, sums: Tensor, offset: Pair) -> Tensor:
        """[..., H', W', C] of one place in the windows -> where these children lie on the map [..., H, W, C]."""
        # Finite, since the logarithm of a sum of nothing would have no gradient; exp of it is 0.
        nothing = torch.finfo(sums.dtype).min / 4
        (stride_h, stride_w), (i, j) = self.stride, offset
        rows, columns = sums.shape[-3:-1]
        apart = F.pad(sums[..., :, None, :, None, :], (0, 0, 0, stride_w - 1, 0, 0, 0, stride_h - 1), value=nothing)
        apart = apart.flatten(-3, -2).flatten(-4, -3)
        apart = apart[..., : stride_h * (rows - 1) + 1, : stride_w * (columns - 1) + 1, :]
        return F.pad(apart, (0, 0, j, self.kernel[1] - 1 - j, i, self.kernel[0] - 1 - i), value=nothing)
