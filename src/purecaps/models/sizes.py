"""The sizes of a P-CapsNet's layers, as programs in other languages need them: plain numbers."""

from __future__ import annotations

from dataclasses import dataclass

from purecaps.errors import ConfigError
from purecaps.models.pcapsnet import PCapsNet


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of one layer, in the shape alphabet of ops/README.md."""

    in_size: tuple[int, int]
    out_size: tuple[int, int]
    C: int
    O: int
    g: int
    m: int
    n: int
    p: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    chunk: int
    slope: float

    @property
    def in_capsules(self) -> int:
        """Numbers at one input position."""
        return self.C * self.g * self.m * self.n

    @property
    def out_capsules(self) -> int:
        """Numbers at one output position."""
        return self.O * self.capsule

    @property
    def in_numbers(self) -> int:
        return self.in_size[0] * self.in_size[1] * self.in_capsules

    @property
    def out_numbers(self) -> int:
        return self.out_size[0] * self.out_size[1] * self.out_capsules

    @property
    def capsule(self) -> int:
        """Numbers of one output capsule."""
        return self.g * self.m * self.p

    @property
    def kernel_shape(self) -> tuple[int, int, int, int, int, int, int]:
        return (*self.kernel, self.C, self.O, self.g, self.n, self.p)

    @property
    def multiply_adds(self) -> int:
        """Multiplications of one image, those with padding included."""
        kh, kw = self.kernel
        return self.out_size[0] * self.out_size[1] * kh * kw * self.C * self.O * self.g * self.m * self.n * self.p


def layer_sizes(model: PCapsNet) -> list[LayerSizes]:
    """The sizes of every layer for the network's own input."""
    size, caps, numbers = (model.in_shape[1], model.in_shape[2]), 1, model.in_shape[0]
    layers = []
    for block in model.capsule_blocks():
        geometry = block.conv.geometry
        if geometry.dilation != (1, 1):
            raise ConfigError(f"model: expected layers without dilation, got {geometry.dilation}")
        g, n, p = block.conv.capsule
        out = geometry.out_size(size, block.conv.kernel_size)
        m = numbers // (g * n)
        layer = LayerSizes(
            in_size=size,
            out_size=out,
            C=caps,
            O=block.conv.weight.shape[3],
            g=g,
            m=m,
            n=n,
            p=p,
            kernel=block.conv.kernel_size,
            stride=geometry.stride,
            padding=geometry.padding,
            chunk=block.squash_chunk or g * m * p,
            slope=block.negative_slope,
        )
        layers.append(layer)
        size, caps, numbers = out, layer.O, layer.capsule
    return layers
