"""The roofline: how fast a network could at most be on this machine, layer by layer.

Two things take time whatever the program: the convolutions' arithmetic, at the rate of a large product (on a CPU, of a
matrix product or a convolution, whichever is faster), and each layer's numbers moved once between memory and processor,
at the rate of a large copy. The larger is the floor. A program that keeps numbers in a cache, or several layers in one
kernel, can go below the second.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from purecaps.experiments.bench.timing import Call, milliseconds
from purecaps.models import PCapsNet
from purecaps.models.sizes import layer_sizes
from purecaps.train.arithmetic import arithmetic

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TRIES = 10


@dataclass(frozen=True)
class Rates:
    """What the machine reaches: floating-point operations and bytes a second."""

    flop: float
    bytes: float

    def __str__(self) -> str:
        flop = f"{self.flop / 1e12:.3g} TFLOP/s" if self.flop >= 1e12 else f"{self.flop / 1e9:.3g} GFLOP/s"
        return f"products {flop}, copies {self.bytes / 1e9:,.0f} GB/s"


@dataclass(frozen=True)
class Floor:
    """Milliseconds that the arithmetic and the traffic take at least."""

    arithmetic: float
    traffic: float

    @property
    def ms(self) -> float:
        return max(self.arithmetic, self.traffic)

    @property
    def by(self) -> str:
        """Which of the two it is."""
        return "arithmetic" if self.arithmetic >= self.traffic else "bytes"


def measured_rates(device: torch.device, precision: str) -> Rates:
    """The rates of a large product in the precision and of a large copy, best of some tries."""
    size, length = (8192, 2**28) if device.type == "cuda" else (1024, 2**25)
    with arithmetic(precision, device), torch.no_grad():
        left, right = (torch.rand(size, size, device=device).to(DTYPES[precision]) for _ in range(2))
        product = torch.empty_like(left)
        flop = 2 * size**3 / _best(lambda: torch.mm(left, right, out=product), device)
        if device.type == "cpu":  # MKL leaves half of an AMD processor unused, where oneDNN does not
            flop = max(flop, _convolution_rate(DTYPES[precision]))
        source = torch.zeros(length, device=device)
        target = torch.zeros_like(source)
        copied = _best(lambda: target.copy_(source), device)
    return Rates(flop, 2 * source.nbytes / copied)


def _convolution_rate(dtype: torch.dtype) -> float:
    """Operations a second of a convolution that fills a CPU's vectors and stays in its cache."""
    count, size, channels = 32, 32, 128
    images = torch.rand(count, size, size, channels).to(dtype).permute(0, 3, 1, 2)
    kernel = torch.rand(channels, 3, 3, channels).to(dtype).permute(0, 3, 1, 2)
    took = _best(lambda: torch.conv2d(images, kernel), torch.device("cpu"))
    return 2 * count * (size - 2) ** 2 * 9 * channels**2 / took


def _best(call: Call, device: torch.device) -> float:
    """Seconds."""
    return min(milliseconds(call, device)[0] for _ in range(TRIES)) / 1e3


def floor(network: PCapsNet, mode: str, batch: int, precision: str, rates: Rates) -> Floor:
    """What a call takes at least.

    Forward, a layer reads its input and its kernel and writes its output. Backward, it reads them and the output's
    gradient, and writes the gradients of kernel and input. That is twice the arithmetic of forward, and once in the
    first layer, whose input needs no gradient.

    Args:
        network: for its sizes.
        mode: one of `MODES`.
        batch: images in a call.
        precision: of the numbers that are moved; bytes come in where the mode is inference.
        rates: what the machine reaches.
    """
    width = torch.finfo(DTYPES[precision]).bits // 8
    flop = moved = 0
    for position, layer in enumerate(layer_sizes(network)):
        first = position == 0
        in_bytes = batch * layer.in_numbers * (1 if first and mode == "inference" else width)
        out_bytes = batch * layer.out_numbers * width
        kernel_bytes = math.prod(layer.kernel_shape) * width
        moved += in_bytes + kernel_bytes + out_bytes
        flop += 2 * batch * layer.multiply_adds * (1 if mode != "train" else 2 if first else 3)
        if mode == "train":
            moved += in_bytes + 2 * kernel_bytes + 2 * out_bytes + (0 if first else in_bytes)
    return Floor(flop / rates.flop * 1e3, moved / rates.bytes * 1e3)
