"""The page's networks as ONNX graphs whose weights are inputs.

Two graphs a network: one reads an image, the other says in which direction FGSM pushes its pixels. The weights come
from the packaged safetensors file, which the page reads anyway to show the filters: so a graph is some 20 kB whatever
the network's size, and cannot hold other weights than the package.

onnxruntime has no automatic differentiation in the browser, and torch.onnx has no translation of autograd's convolution
backward. So the backward pass is written out here; the tests hold it against autograd.
"""

from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purecaps.export.onnx import convert, portable, require_packages
from purecaps.files import atomic_write
from purecaps.losses import LENGTH_SCALE
from purecaps.models.pcapsnet import PCapsNet
from purecaps.nn import CapsBlock
from purecaps.ops.conv import fold_capsules, fold_kernel, unfold_images
from purecaps.ops.reference import length, squash_factor

CAPSULE = (-3, -2, -1)


class Reading(nn.Module):
    """What a network makes of an image.

    Shape:
        images [1, C, H, W], each layer's weight [kh, kw, C, O, g, n, p] ->
        lengths [1, K], each layer's capsules [1, O, H', W', g, m, p]
    """

    def __init__(self, network: PCapsNet) -> None:
        super().__init__()
        self.layers = _Layers(network)

    def forward(self, images: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        given = {f"network.blocks.{index}.conv.weight": weight for index, weight in enumerate(weights)}
        found: tuple[Tensor, ...] = torch.func.functional_call(self.layers, given, (images,))
        return found


class _Layers(nn.Module):
    def __init__(self, network: PCapsNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        maps = self.network.features(images)
        return self.network.head(maps[-1]), *maps


class Direction(nn.Module):
    """The sign of the loss's gradient by the image, which FGSM adds epsilon times.

    The loss is that of `evaluate.attacks`, for the class that the network itself gives the image: nobody has said which
    a drawing is of.

    Shape:
        images [1, C, H, W], each layer's weight [kh, kw, C, O, g, n, p] -> direction [1, C, H, W] of -1, 0 and 1
    """

    def __init__(self, network: PCapsNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, *weights: Tensor) -> Tensor:
        u = self.network.as_capsules(images)  # [1, 1, H, W, 1, 1, C]
        steps = []
        for block, weight in zip(self.network.capsule_blocks(), weights, strict=True):
            u = block.conv.fit(u)
            v = torch.func.functional_call(block.conv, {"weight": weight}, (u,))
            steps.append((block, weight, u, v))
            u = _leaky_squash(block, v)
        gradient = _loss_gradient(u)
        for block, weight, u, v in reversed(steps):
            gradient = _leaky_squash_gradient(block, v, gradient.reshape(v.shape))
            gradient = _conv_gradient(block, u, weight, gradient)
        # The input has one capsule of 1 x 1 x C. A standard deviation that it was divided by changes no sign.
        return gradient.sum(dim=(1, 4, 5)).permute(0, 3, 1, 2).sign()


def export_graphs(network: PCapsNet, name: str, reading: os.PathLike[str], direction: os.PathLike[str]) -> None:
    """Writes a network's two graphs; neither holds its weights.

    Args:
        network: whose layers to write.
        name: what to call it in the files.
        reading: the file for `Reading`: "images" and "weight1", ... to "lengths" and "layer1", ...
        direction: the file for `Direction`: the same inputs to "direction".
    """
    require_packages()
    plain = portable(network)
    assert isinstance(plain, PCapsNet)
    weights = [block.conv.weight.detach().contiguous() for block in plain.capsule_blocks()]
    numbers = range(1, len(weights) + 1)
    inputs = ["images", *(f"weight{number}" for number in numbers)]
    example = (torch.zeros(1, *network.in_shape), *weights)
    for module, outputs, path in (
        (Reading(plain), ["lengths", *(f"layer{number}" for number in numbers)], reading),
        (Direction(plain), ["direction"], direction),
    ):
        program = convert(module.eval(), example, name, inputs=inputs, outputs=outputs)
        with atomic_write(path) as temporary:
            program.save(temporary, external_data=False)


def _leaky_squash(block: CapsBlock, v: Tensor) -> Tensor:
    a = F.leaky_relu(v, block.negative_slope)
    return a * squash_factor(length(a, CAPSULE))


def _loss_gradient(capsules: Tensor) -> Tensor:
    """d loss / d capsules [1, K, H', W', g, m, p], up to a factor above zero, which no sign depends on."""
    lengths = length(capsules, CAPSULE)
    scores = lengths.mean(dim=(2, 3), keepdim=True)
    own = (scores == scores.amax(dim=1, keepdim=True)).to(scores.dtype)
    slope = torch.softmax(LENGTH_SCALE * scores, dim=1) - own
    return slope * capsules / torch.where(lengths > 0, lengths, 1.0)


def _leaky_squash_gradient(block: CapsBlock, v: Tensor, gradient: Tensor) -> Tensor:
    """As `ops.activation` derives it: f dy + (f'/r)(a.dy) a, whose second part vanishes with r."""
    a = F.leaky_relu(v, block.negative_slope)
    r = length(a, CAPSULE)
    f = squash_factor(r)
    known = r > 1e-6
    safe = torch.where(known, r, 1.0)
    slope = torch.where(known, (torch.exp(-safe) - f) / (safe * safe), 0.0)
    through = f * gradient + slope * (a * gradient).sum(dim=CAPSULE, keepdim=True) * a
    return torch.where(v > 0, through, block.negative_slope * through)


def _conv_gradient(block: CapsBlock, u: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
    """The convolution's adjoint: the transposed convolution with the same kernel."""
    stride, padding, dilation = block.conv.geometry
    kernel = weight.shape[:2]
    rest = [
        u.shape[2 + axis]
        - ((gradient.shape[2 + axis] - 1) * stride[axis] - 2 * padding[axis] + dilation[axis] * (kernel[axis] - 1) + 1)
        for axis in (0, 1)
    ]
    images = F.conv_transpose2d(
        fold_capsules(gradient),
        fold_kernel(weight),
        stride=stride,
        padding=padding,
        output_padding=rest,
        dilation=dilation,
        groups=weight.shape[4],
    )
    return unfold_images(images, m=u.shape[5], g=u.shape[4], O=u.shape[1])
