"""The first capsules: what a convolution's channels say, grouped into poses."""

from __future__ import annotations

from torch import Tensor, nn

from purecaps.errors import ConfigError, unknown_name
from purecaps.nn.routing.capsules import Capsules, of_lengths, squash
from purecaps.nn.transform import check_sizes
from purecaps.ops.geometry import IntOrPair
from purecaps.ops.validation import as_pair, shape_text

ACTIVATIONS = ("length", "logistic", "none")


def to_capsules(maps: Tensor, pose_size: int) -> Tensor:
    """Channels as capsules: [B, C*D, H, W] -> poses [B, H, W, C, D]; a capsule's numbers are adjacent channels."""
    if maps.dim() != 4 or maps.shape[1] % pose_size:
        raise ConfigError(f"maps: expected [B, C*D, H, W] with D = {pose_size}, got {shape_text(maps.shape)}")
    B, channels, H, W = maps.shape
    return maps.permute(0, 2, 3, 1).reshape(B, H, W, channels // pose_size, pose_size)


class PrimaryCapsules(nn.Module):
    """A convolution whose channels are capsules.

    Args:
        in_channels: channels of the input maps.
        out_caps: capsules at each position, C.
        pose_size: numbers of a pose, D (16 for a 4 x 4 matrix).
        kernel_size: an int or a (height, width) pair.
        stride: step between positions.
        padding: zeros added on each side.
        activation: "length": poses are squashed and their length is the activation (Sabour et al. 2017). "logistic":
            poses are left as they are, and a channel of its own, through the logistic function, is the activation
            (Hinton et al. 2018). "none": poses are left as they are and activations are their lengths.
        bias: whether the convolution has one.
        batch_norm: normalises poses, and activations before the logistic function, over the batch, with a learned
            scale and shift for each capsule type (Ribeiro et al. 2020).

    Shape:
        maps [B, in_channels, H, W] -> poses [B, H', W', C, D] and activations [B, H', W', C]
    """

    def __init__(
        self,
        in_channels: int,
        out_caps: int,
        pose_size: int,
        kernel_size: IntOrPair = 1,
        *,
        stride: IntOrPair = 1,
        padding: IntOrPair = 0,
        activation: str = "length",
        bias: bool = True,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_sizes(in_channels=in_channels, out_caps=out_caps, pose_size=pose_size)
        if activation not in ACTIVATIONS:
            raise unknown_name("activation", activation, ACTIVATIONS)
        self.pose_size, self.activation = pose_size, activation
        logistic = activation == "logistic"
        self.conv = nn.Conv2d(
            in_channels,
            out_caps * (pose_size + logistic),
            as_pair(kernel_size, "kernel_size", least=1),
            as_pair(stride, "stride", least=1),
            as_pair(padding, "padding", least=0),
            bias=bias,
        )
        self.out_caps = out_caps
        self.pose_norm = nn.BatchNorm1d(out_caps) if batch_norm else None
        self.activation_norm = nn.BatchNorm1d(out_caps) if batch_norm and logistic else None

    def forward(self, maps: Tensor) -> Capsules:
        convolved = self.conv(maps)
        poses = to_capsules(convolved[:, : self.out_caps * self.pose_size], self.pose_size)
        if self.pose_norm is not None:
            poses = self.pose_norm(poses.reshape(-1, self.out_caps, self.pose_size)).reshape(poses.shape)
        if self.activation == "logistic":
            presence = convolved[:, self.out_caps * self.pose_size :].permute(0, 2, 3, 1)
            if self.activation_norm is not None:
                presence = self.activation_norm(presence.reshape(-1, self.out_caps)).reshape(presence.shape)
            return Capsules(poses, presence.sigmoid())
        return of_lengths(squash(poses) if self.activation == "length" else poses)

    def extra_repr(self) -> str:
        return f"{self.out_caps} capsules of {self.pose_size}, activation {self.activation}"
