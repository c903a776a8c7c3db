"""How a GPU multiplies: in which precision, and by which of cuDNN's algorithms."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def arithmetic(precision: str, device: torch.device) -> Iterator[None]:
    """TF32 unless the precision is "fp32", in convolutions, where cuDNN would take it by default, and in products.

    cuDNN tries its algorithms out: its guesses for the few channels of capsules cost up to 2.5 times as much (a step of
    pcapsnet4 by conv2d on an H200: 1.2 ms against 3.0). Two runs may then differ in their last digits.
    """
    if device.type != "cuda":
        yield
        return
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark
    allowed = precision != "fp32"
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = allowed, allowed, True
    try:
        yield
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.benchmark = before
