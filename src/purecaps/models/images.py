"""What networks of images share: arguments checked, images checked and standardised, their work counted."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.ops.autocast import autocast_dtype
from purecaps.ops.validation import check_floating, shape_text

ImageShape = tuple[int, int, int]

MNIST: ImageShape = (1, 28, 28)
CIFAR: ImageShape = (3, 32, 32)
CIFAR_CROP: ImageShape = (3, 24, 24)


def check_images(in_shape: ImageShape, num_classes: int, smallest: int) -> None:
    """Refuses what no network could be built for, and images too small for this one."""
    check_in_shape(in_shape)
    check_num_classes(num_classes)
    if min(in_shape[1:]) < smallest:
        raise ConfigError(
            f"in_shape: expected images of at least {smallest}x{smallest} for this network, "
            f"got {in_shape[1]}x{in_shape[2]}"
        )


def check_in_shape(in_shape: Sequence[int]) -> None:
    if (
        not isinstance(in_shape, Sequence)
        or len(in_shape) != 3
        or any(not isinstance(size, int) or size < 1 for size in in_shape)
    ):
        raise ConfigError(f"in_shape: expected (channels, height, width), each at least 1, got {in_shape!r}")


def check_dtype(images: Tensor, weight: Tensor) -> None:
    """Refuses images that the layers would refuse, where what they are called is still known."""
    # Under autocast they are cast to one dtype later.
    if images.dtype != weight.dtype and autocast_dtype(images.device.type) is None:
        raise ConfigError(f"images: expected {weight.dtype}, as the network's weights are, got {images.dtype}")


def check_num_classes(num_classes: int) -> None:
    if not isinstance(num_classes, int) or num_classes < 2:
        raise ConfigError(f"num_classes: expected an int >= 2, got {num_classes!r}")


def per_channel(name: str, values: Sequence[float] | None, channels: int) -> Tensor | None:
    """What images are standardised with, as [C, 1, 1]; None stays None."""
    if values is None:
        return None
    if len(values) != channels or (name == "std" and min(values) <= 0):
        raise ConfigError(
            f"{name}: expected {channels} numbers{' above 0' if name == 'std' else ''}, one a channel, "
            f"got {tuple(values)!r}"
        )
    return torch.tensor(values, dtype=torch.float32).view(channels, 1, 1)


class ImageNetwork(nn.Module):
    """Base of networks from images of one size to class scores. Subclasses call `standardised` before anything else.

    Args:
        in_shape: the images' (channels, height, width).
        num_classes: how many classes to tell apart.
        smallest: the least height and width that leave every map at least one position.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.

    Shape:
        images [B, C, H, W] in [0, 1] -> scores [B, num_classes]
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        in_shape: ImageShape,
        num_classes: int,
        *,
        smallest: int = 1,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        check_images(in_shape, num_classes, smallest)
        self.in_shape, self.num_classes = in_shape, num_classes
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, per_channel(name, values, in_shape[0]))

    def standardised(self, images: Tensor) -> Tensor:
        """The images as the layers take them; refuses those of another shape or type."""
        if images.dim() != 4 or tuple(images.shape[1:]) != self.in_shape:
            expected = ", ".join(map(str, self.in_shape))
            raise ConfigError(f"images: expected [B, {expected}], got {shape_text(images.shape)}")
        check_floating(images, "images (in [0, 1])")
        if self.mean is not None:
            images = images - self.mean
        if self.std is not None:
            images = images / self.std
        weight = next(self.parameters(), None)
        if weight is not None:
            check_dtype(images, weight)
        return images

    def multiply_adds(self) -> int:
        """Multiplications of one image's forward pass in convolutions and matrix products, so votes too.

        What a routing procedure multiplies number by number is not among them.
        """
        # Here, not above: it imports Triton where that is installed.
        from torch.utils.flop_counter import FlopCounterMode

        # Only sizes matter: the copy's weights are one zero each, which takes no memory.
        zeros = {id(t): torch.zeros((), dtype=t.dtype, device="cpu").expand(t.shape) for t in self.buffers()}
        for weight in self.parameters():
            zero = torch.zeros((), dtype=weight.dtype, device="cpu").expand(weight.shape)
            zeros[id(weight)] = nn.Parameter(zero, requires_grad=False)
        network = copy.deepcopy(self, zeros).eval()
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            network(torch.zeros(1, *self.in_shape, device="cpu"))
        return int(counter.get_total_flops()) // 2

    def extra_repr(self) -> str:
        return f"in_shape {'x'.join(map(str, self.in_shape))}, {self.num_classes} classes"
