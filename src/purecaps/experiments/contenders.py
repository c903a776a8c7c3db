"""What a benchmark sets side by side: ways to run one network, and a plain CNN of the same size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purecaps.models import create_model
from purecaps.models.registry import get_entry
from purecaps.ops import registry
from purecaps.ops.geometry import Geometry
from purecaps.ops.reference import squash


@dataclass(frozen=True)
class Contender:
    """One way to run a network.

    Args:
        name: what the table calls it.
        make: (model name, device) -> a module in training mode, its weights drawn by the caller's seed.
        exact: whether it computes the same function as the others, so that its outputs are held against theirs.
        devices: the kinds of device it runs on.
    """

    name: str
    make: Callable[[str, torch.device], nn.Module]
    exact: bool = True
    devices: tuple[str, ...] = ("cpu", "cuda")


def naive_conv2d(u: Tensor, w: Tensor, geometry: Geometry) -> Tensor:
    """The operation as one would first write it: all windows unfolded, then one einsum."""
    (pad_h, pad_w), (kh, kw) = geometry.padding, w.shape[:2]
    padded = F.pad(u, (0, 0, 0, 0, 0, 0, pad_w, pad_w, pad_h, pad_h))
    windows = padded.unfold(2, kh, geometry.stride[0]).unfold(
        3, kw, geometry.stride[1]
    )  # [B, C, H', W', g, m, n, kh, kw]
    return torch.einsum("bcyxgmnij,ijcognp->boyxgmp", windows, w)


def naive_block(u: Tensor, w: Tensor, geometry: Geometry, negative_slope: float, chunk: int | None) -> Tensor:
    return squash(F.leaky_relu(naive_conv2d(u, w, geometry), negative_slope), (-3, -2, -1))


def _refuses(u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None) -> str | None:
    if geometry.dilation != (1, 1):
        return f"dilation {geometry.dilation}, only 1 is covered"
    return None if chunk is None else f"squash_chunk = {chunk}, only whole capsules are covered"


def _naive(name: str, device: torch.device) -> nn.Module:
    if "naive" not in registry.names():
        registry.register(registry.Implementation("naive", naive_conv2d, naive_block, _refuses, automatic=False))
    return create_model(name, impl="naive").to(device)


def _by_impl(impl: str) -> Callable[[str, torch.device], nn.Module]:
    return lambda name, device: create_model(name, impl=impl).to(device)


def _compiled(mode: str) -> Callable[[str, torch.device], nn.Module]:
    def make(name: str, device: torch.device) -> nn.Module:
        model = create_model(name, impl="conv").to(device)
        model.compile(mode=mode)
        return model

    return make


class PlainCNN(nn.Sequential):
    """3x3 convolutions with a P-CapsNet's strides and about as many parameters: ReLU, no bias, mean over positions.

    Args:
        parameters: how many to come close to.
        channels: of the images.
        strides: one a layer.
        num_classes: outputs.
    """

    def __init__(self, parameters: int, channels: int, strides: tuple[int, ...], num_classes: int) -> None:
        hidden = len(strides) - 1

        def count(width: int) -> int:
            return 9 * width * (channels + (hidden - 1) * width + num_classes)

        width = max(1, max(w for w in range(1, 2000) if count(w) <= parameters or w == 1))
        sizes = [channels, *[width] * hidden, num_classes]
        layers: list[nn.Module] = []
        for position, stride in enumerate(strides):
            layers.append(nn.Conv2d(sizes[position], sizes[position + 1], 3, stride=stride, bias=False))
            if position < hidden:
                layers.append(nn.ReLU())
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _cnn(name: str, device: torch.device) -> nn.Module:
    model = create_model(name)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    strides = tuple(block.conv.geometry.stride[0] for block in model.blocks)  # type: ignore[union-attr]
    return PlainCNN(parameters, get_entry(name).in_shape[0], strides, 10).to(device)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("naive", _naive),
        Contender("conv", _by_impl("conv")),
        Contender("compile", _compiled("default")),
        Contender("max-autotune", _compiled("max-autotune-no-cudagraphs"), devices=("cuda",)),
        Contender("gemm", _by_impl("gemm"), devices=("cpu",)),
        Contender("triton", _by_impl("triton"), devices=("cuda",)),
        Contender("cnn", _cnn, exact=False),
    )
}
