"""How a GPU multiplies: in which precision, and by which of cuDNN's algorithms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from purecaps.ops.tf32 import convolutions_in_tf32, products_in_tf32


@contextlib.contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """TF32 unless the precision is "fp32", in convolutions, where cuDNN would take it by default, and in products.

    cuDNN tries its algorithms out: its guesses for the few channels of capsules cost up to 2.5 times as much (a step of
    pcapsnet4 by conv2d on an H200: 1.2 ms against 3.0). Two runs may then differ in their last digits.
    """
    if device.type != "cuda":
        yield
        return
    cudnn, allowed = torch.backends.cudnn, precision != "fp32"
    before = cudnn.benchmark
    with convolutions_in_tf32(allowed), products_in_tf32(allowed):
        cudnn.benchmark = True
        try:
            yield
        finally:
            cudnn.benchmark = before
