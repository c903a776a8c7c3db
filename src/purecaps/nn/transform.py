"""From child poses to votes: a transform for each pair of child and parent."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.ops.geometry import Geometry, Pair
from purecaps.ops.validation import shape_text


def check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ConfigError(f"{name}: expected an int >= 1, got {size!r}")


class Transform(nn.Module):
    """Votes of children [..., I, D_in] for O parents [..., I, O, D_out], one linear map a pair, no bias.

    A vector pose is multiplied as a row, u_i W_io. A matrix pose, P x P numbers row-major, is multiplied as a matrix,
    M_i W_io (Hinton et al. 2018), so W_io has P^2 numbers instead of P^4.

    Args:
        children: I.
        parents: O.
        in_pose: D_in.
        out_pose: D_out; the same as D_in for matrices.
        matrix: whether poses are square matrices.
        std: standard deviation of the initial weights, which are normal.

    Shape:
        `weight` is [I, O, D_in, D_out], or [I, O, P, P] for matrices.
    """

    def __init__(
        self, children: int, parents: int, in_pose: int, out_pose: int, *, matrix: bool = False, std: float = 0.1
    ) -> None:
        super().__init__()
        check_sizes(children=children, parents=parents, in_pose=in_pose, out_pose=out_pose)
        rows, columns = in_pose, out_pose
        if matrix:
            rows = columns = math.isqrt(in_pose)
            if rows * rows != in_pose or in_pose != out_pose:
                raise ConfigError(
                    "in_pose: expected a square number, the same as out_pose, for matrix poses, "
                    f"got in_pose = {in_pose}, out_pose = {out_pose}"
                )
        self.matrix = matrix
        self.weight = nn.Parameter(torch.empty(children, parents, rows, columns))
        self.reset_parameters(std)

    def reset_parameters(self, std: float, generator: torch.Generator | None = None) -> None:
        """Draws new weights from N(0, std^2)."""
        with torch.no_grad():
            # Drawn on the CPU, so that one seed gives one network on every device.
            self.weight.copy_(torch.empty(self.weight.shape, device="cpu").normal_(0, std, generator=generator))

    def forward(self, children: Tensor) -> Tensor:
        I, _, rows, columns = self.weight.shape
        wanted = rows * columns if self.matrix else rows
        if children.dim() < 2 or tuple(children.shape[-2:]) != (I, wanted):
            raise ConfigError(f"poses: expected [..., {I}, {wanted}], got {shape_text(children.shape)}")
        if self.matrix:
            poses = children.unflatten(-1, (rows, rows))
            return torch.einsum("...iap,iopq->...ioaq", poses, self.weight).flatten(-2)
        return torch.einsum("...id,iode->...ioe", children, self.weight)

    def extra_repr(self) -> str:
        I, O, rows, columns = self.weight.shape
        return f"{I} x {O} transforms of {rows}x{columns}" + (", matrix poses" if self.matrix else "")


class SummedTransform(nn.Module):
    """Votes of capsule channels: each channel is convolved by itself, so one vote sums up its whole window.

    Used by attention routing, whose children are the C channels and not the kh*kw*C capsules of a window.

    Args:
        in_caps: C.
        parents: O.
        in_pose: D_in.
        out_pose: D_out.
        kernel: (height, width) of the window.
        std: standard deviation of the initial weights, which are normal.

    Shape:
        poses [B, H, W, C, D_in] -> votes [B, H', W', C, O, D_out]. `weight` is [C, O, D_out, D_in, kh, kw], `bias`
        [C, O, D_out].
    """

    def __init__(
        self, in_caps: int, parents: int, in_pose: int, out_pose: int, kernel: Pair, *, std: float = 0.1
    ) -> None:
        super().__init__()
        check_sizes(in_caps=in_caps, parents=parents, in_pose=in_pose, out_pose=out_pose)
        self.weight = nn.Parameter(torch.empty(in_caps, parents, out_pose, in_pose, *kernel))
        self.bias = nn.Parameter(torch.zeros(in_caps, parents, out_pose))
        self.reset_parameters(std)

    def reset_parameters(self, std: float, generator: torch.Generator | None = None) -> None:
        """Draws new weights from N(0, std^2); biases become 0."""
        with torch.no_grad():
            self.weight.copy_(torch.empty(self.weight.shape, device="cpu").normal_(0, std, generator=generator))
            self.bias.zero_()

    def forward(self, poses: Tensor, geometry: Geometry) -> Tensor:
        C = self.weight.shape[0]
        maps = poses.flatten(-2).permute(0, 3, 1, 2)  # [B, C*D_in, H, W]
        votes = F.conv2d(
            maps, self.weight.flatten(0, 2), self.bias.flatten(), geometry.stride, geometry.padding, groups=C
        )
        votes = votes.permute(0, 2, 3, 1)
        return votes.reshape(*votes.shape[:3], *self.bias.shape)

    def extra_repr(self) -> str:
        C, O, out_pose, in_pose, kh, kw = self.weight.shape
        return f"{C} channels, {O} parents, {kh}x{kw} windows of {in_pose} -> {out_pose}"
