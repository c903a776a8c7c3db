"""P-CapsNets: stacks of capsule blocks with no other layer between the image and the class capsules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.models.images import ImageShape, check_dtype, check_in_shape, check_num_classes, per_channel
from purecaps.nn import CapsBlock, CapsConv2d, LengthHead
from purecaps.nn.hooks import computes_as, is_hooked
from purecaps.ops.api import caps_blocks
from purecaps.ops.validation import check_chunk, check_floating, shape_text


@dataclass(frozen=True)
class Layer:
    """One capsule layer of a network: how many capsules of which shape it makes.

    Args:
        out: capsules at each output position; None in the last layer stands for the number of classes.
        n: columns of the kernel capsule; None in the first layer stands for the image's channels (over g).
        p: columns of the output capsules.
        stride: step between output positions.
        kernel: height and width of the kernel.
        padding: zero capsules added on each side.
        g: matrices in each capsule.
    """

    out: int | None
    n: int | None
    p: int
    stride: int = 1
    kernel: int = 3
    padding: int = 0
    g: int = 1


class PCapsNet(nn.Module):
    """A routing-free capsule network.

    An image [C, H, W] is read as one capsule of shape 1x1xC at each pixel. Every layer convolves capsules with
    capsules, applies leaky ReLU and squashes; the length of a class's last capsule is its score.

    Args:
        layers: what to stack. The last layer's `out` is the number of classes.
        in_shape: the images' (channels, height, width).
        num_classes: how many classes to tell apart.
        init: "msra" or "caffe"; see `CapsConv2d`, also for the next two.
        init_correlation: of a kernel's capsules at different positions.
        coefficients: None, "free" or "softmax".
        squash_chunk: None squashes whole capsules; k squashes runs of k numbers in all layers but the last,
            as the authors' code does with k = 8.
        squash_gradient: "exact" or "diagonal"; see `CapsBlock`.
        pool: how positions are combined where the last map is larger than 1x1; see `LengthHead`.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.
        impl: implementation of the capsule convolution; see `purecaps.ops.caps_conv2d`.

    Shape:
        images [B, C, H, W] in [0, 1] -> scores [B, num_classes]
    """

    mean: Tensor | None
    std: Tensor | None

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        in_shape: ImageShape = (1, 28, 28),
        num_classes: int = 10,
        init: str = "msra",
        init_correlation: float = 0.0,
        coefficients: str | None = None,
        squash_chunk: int | None = None,
        squash_gradient: str = "exact",
        pool: str = "mean",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        check_in_shape(in_shape)
        check_num_classes(num_classes)
        if not layers:
            raise ConfigError("layers: expected at least one Layer, got none")
        self.in_shape = in_shape
        self.num_classes = num_classes
        self.blocks = nn.ModuleList()
        caps, numbers = 1, in_shape[0]
        for position, layer in enumerate(layers):
            last = position == len(layers) - 1
            out = _out_caps(layer, position, num_classes, last=last)
            n = _columns(layer, position, numbers)
            if numbers % (layer.g * n):
                raise ConfigError(
                    f"layers[{position}]: expected g*n to divide the {numbers} numbers of the capsules it is "
                    f"given, so that m comes out whole, got g*n = {layer.g}*{n} = {layer.g * n}"
                )
            caps_numbers = numbers // n * layer.p
            chunk = None if last else squash_chunk
            if chunk is not None:
                check_chunk(chunk, caps_numbers)
            block = CapsBlock(
                caps,
                out,
                (layer.g, n, layer.p),
                layer.kernel,
                stride=layer.stride,
                padding=layer.padding,
                init=init,
                init_correlation=init_correlation,
                coefficients=coefficients,
                squash_chunk=chunk,
                squash_gradient=squash_gradient,
                impl=impl,
            )
            self.blocks.append(block)
            caps, numbers = out, caps_numbers
        least = self.smallest_input()
        if in_shape[1] < least[0] or in_shape[2] < least[1]:
            raise ConfigError(
                f"in_shape: expected images of at least {least[0]}x{least[1]} for these {len(layers)} layers, "
                f"got {in_shape[1]}x{in_shape[2]}"
            )
        self.head = LengthHead(pool)
        for name, values in (("mean", mean), ("std", std)):
            self.register_buffer(name, per_channel(name, values, in_shape[0]))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights for every layer, first to last."""
        for block in self.capsule_blocks():
            block.conv.reset_parameters(generator)

    def capsule_blocks(self) -> list[CapsBlock]:
        return [block for block in self.blocks if isinstance(block, CapsBlock)]

    def changed_block(self) -> str | None:
        """The first of the blocks that is something else than a capsule block by now; None where none is."""
        for position, block in enumerate(self.blocks):
            if not computes_as(block, CapsBlock):
                return f"{type(block).__name__} at blocks[{position}]"
            if not computes_as(block.conv, CapsConv2d):
                return f"{type(block.conv).__name__} at blocks[{position}].conv"
        return None

    def require_capsule_blocks(self) -> None:
        """Refuses a network that somebody has changed, where its layers are read and not called."""
        changed = self.changed_block()
        if changed is not None:
            raise ConfigError(f"model: expected a PCapsNet with the layers that it was built of, got {changed}")

    def smallest_input(self) -> tuple[int, int]:
        """The smallest image (height, width) that leaves a last map of at least 1x1."""
        size = (1, 1)
        for block in reversed(self.capsule_blocks()):
            size = block.conv.geometry.smallest_input(size, block.conv.kernel_size)
        return size

    def multiply_adds(self) -> int:
        """Multiplications of one image's forward pass in the capsule convolutions.

        Learned coefficients add none: they are multiplied into the kernels once for all images.
        """
        size, total = (self.in_shape[1], self.in_shape[2]), 0
        numbers = self.in_shape[0]
        for block in self.capsule_blocks():
            size = block.conv.geometry.out_size(size, block.conv.kernel_size)
            g, n, p = block.conv.capsule
            m = numbers // (g * n)
            total += size[0] * size[1] * m * block.conv.weight.numel()
            numbers = g * m * p
        return total

    def features(self, images: Tensor) -> list[Tensor]:
        """Every layer's squashed capsules [B, O, H', W', g, m, p], first layer first."""
        u = self.as_capsules(images)
        maps = []
        for block in self.blocks:
            u = block(u)
            maps.append(u)
        return maps

    def capsules(self, images: Tensor) -> Tensor:
        """The last layer's capsules [B, num_classes, H', W', g, m, p]."""
        u = self.as_capsules(images)
        at_once = self._at_once(u)
        if at_once is not None:
            return at_once[0]
        for block in self.blocks:
            u = block(u)
        return u

    def radii(self, images: Tensor) -> Tensor | None:
        """Lengths r of the class capsules before they are squashed [B, num_classes, H', W'].

        A class's score is the mean (or the largest) of 1 - exp(-r) over positions. None where the layers are computed
        one by one, and this is not at hand.
        """
        at_once = self._at_once(self.as_capsules(images))
        return None if at_once is None else at_once[1]

    def _at_once(self, u: Tensor) -> tuple[Tensor, Tensor] | None:
        """The last capsules and their lengths before squashing, where the implementation takes all layers together."""
        if self.changed_block() is not None:
            return None
        blocks = self.capsule_blocks()
        convs = [block.conv for block in blocks]
        if any(is_hooked(module) for module in (*blocks, *convs)) or len({conv.impl for conv in convs}) > 1:
            return None
        return caps_blocks(
            convs[0].fit(u), [conv.kernel() for conv in convs], [block.spec for block in blocks], convs[0].impl
        )

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.head(self.capsules(images))
        return scores

    def as_capsules(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or images.shape[1] != self.in_shape[0]:
            raise ConfigError(f"images: expected [B, {self.in_shape[0]}, H, W], got {shape_text(images.shape)}")
        check_floating(images, "images (in [0, 1])")
        if self.mean is not None:
            images = images - self.mean
        if self.std is not None:
            images = images / self.std
        check_dtype(images, next(self.parameters()))
        return images.permute(0, 2, 3, 1)[:, None, :, :, None, None, :]  # [B, 1, H, W, 1, 1, C]

    def extra_repr(self) -> str:
        return f"in_shape {'x'.join(map(str, self.in_shape))}, {self.num_classes} classes"


def _out_caps(layer: Layer, position: int, num_classes: int, *, last: bool) -> int:
    if last:
        if layer.out not in (None, num_classes):
            raise ConfigError(
                f"layers[{position}].out: expected num_classes = {num_classes} (or None) in the last layer, "
                f"got {layer.out}"
            )
        return num_classes
    if layer.out is None:
        raise ConfigError(f"layers[{position}].out: expected an int; None is for the last layer")
    return layer.out


def _columns(layer: Layer, position: int, numbers: int) -> int:
    if layer.n is not None:
        return layer.n
    if position > 0:
        raise ConfigError(f"layers[{position}].n: expected an int; None is for the first layer")
    return max(1, numbers // layer.g)
