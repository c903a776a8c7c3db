"""What the tests of fused networks share, on a GPU, interpreted or emulated."""

from pathlib import Path

import numpy as np
import torch

from purecaps import create_model
from purecaps.models import Layer, PCapsNet

SAMPLE = Path(__file__).parents[1] / "assets" / "mnist_sample.npz"
NETS = ("pcapsnet1", "pcapsnet2", "pcapsnet3")
# Largest error of a length against float64: a sum of some 70 products in each of five layers, at the resolution of the
# precision; 10 bits behind the point for float16 and tf32, 7 for bfloat16.
TOLERANCE = {"fp32": 2e-6, "tf32": 2e-3, "fp16": 2e-3, "bf16": 1.6e-2}

# Other sizes than the paper's in every place where a kernel has a constant.
ODD = {
    "colour, odd sizes": (
        [Layer(1, None, 10, stride=2), Layer(3, 5, 3), Layer(1, 3, 7, stride=2), Layer(2, 7, 1), Layer(None, 1, 3)],
        {"in_shape": (3, 28, 27), "num_classes": 3, "mean": (0.1, 0.2, 0.3), "std": (0.5, 0.6, 0.7)},
    ),
    "vectors": (
        [Layer(1, None, 6), Layer(2, 6, 4, stride=2), Layer(1, 4, 5), Layer(1, 5, 4, stride=2), Layer(None, 4, 3)],
        {"in_shape": (1, 21, 22), "num_classes": 17},
    ),
    "strides": (
        [
            Layer(1, None, 6, stride=1), Layer(1, 2, 3, stride=2), Layer(1, 3, 2, stride=1), Layer(1, 2, 3, stride=1),
            Layer(None, 3, 2, stride=3),
        ],
        {"in_shape": (1, 18, 19), "num_classes": 2},
    ),
    "third": (
        [Layer(1, None, 4), Layer(1, 2, 2, stride=3), Layer(1, 2, 2, stride=1), Layer(1, 2, 2), Layer(None, 2, 2)],
        {"in_shape": (1, 25, 23), "num_classes": 4},
    ),
}  # fmt: skip


# The same within what one kernel covers.
IN_ONE = {
    "odd image, columns to be padded": (
        [Layer(1, None, 12, stride=2), Layer(3, 3, 7), Layer(2, 7, 3, stride=2), Layer(3, 3, 5), Layer(None, 5, 7)],
        {"in_shape": (1, 27, 29), "num_classes": 3, "mean": (0.3,), "std": (0.6,)},
    ),
    "wide first layer, every pixel": (
        [Layer(1, None, 20), Layer(5, 5, 4, stride=2), Layer(2, 4, 8), Layer(None, 8, 2, stride=2)],
        {"in_shape": (1, 14, 13), "num_classes": 17},
    ),
    "narrow capsules before a stride": (
        [Layer(1, None, 16, stride=2), Layer(2, 4, 4, stride=2), Layer(None, 4, 3)],
        {"in_shape": (1, 16, 18), "num_classes": 2, "std": (0.3,)},
    ),
    "two layers": ([Layer(1, None, 32, stride=3), Layer(None, 8, 8)], {"in_shape": (1, 9, 11), "num_classes": 5}),
}


def digits(count: int) -> torch.Tensor:
    with np.load(SAMPLE, allow_pickle=False) as file:
        return torch.from_numpy(file["images"]).reshape(-1, 1, 28, 28)[:count]


def odd_network(name: str) -> PCapsNet:
    torch.manual_seed(0)
    layers, options = (ODD | IN_ONE)[name]
    return PCapsNet(layers, **options).eval()


def pretrained(net: str) -> PCapsNet:
    return create_model(net, pretrained=True).eval()


def true_lengths(model: PCapsNet, images: torch.Tensor) -> torch.Tensor:
    """The network's own lengths in float64; uint8 images are divided by 255."""
    pixels = images.double() / 255 if images.dtype == torch.uint8 else images.double()
    dtype = next(model.parameters()).dtype
    with torch.no_grad():
        lengths = model.double()(pixels)
    model.to(dtype)
    return lengths


def assert_lengths_match(got: torch.Tensor, true: torch.Tensor, precision: str) -> None:
    assert got.dtype == torch.float32
    assert got.shape == true.shape
    error = (got.double() - true).abs().max().item()
    assert error <= TOLERANCE[precision], f"lengths: expected within {TOLERANCE[precision]} of float64, got {error:.3g}"


def assert_classes_match(got: torch.Tensor, true: torch.Tensor, precision: str) -> None:
    """The class chosen is the longest, but for capsules that are as long within the tolerance."""
    assert got.dtype == torch.int64
    assert got.shape == true.shape[:1]
    short = true.amax(dim=1) - true.gather(1, got[:, None]).squeeze(1)
    assert short.max() <= 2 * TOLERANCE[precision], (
        f"classes: expected the longest capsule, got one {short.max():.3g} shorter"
    )
