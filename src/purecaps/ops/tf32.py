"""Whether a GPU may round the factors of float32 products to TF32, set for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch


def convolutions_in_tf32(allowed: bool) -> contextlib.AbstractContextManager[None]:
    cudnn: Any = torch.backends.cudnn
    return _switched(allowed, cudnn, (cudnn.conv, cudnn.rnn))


def products_in_tf32(allowed: bool) -> contextlib.AbstractContextManager[None]:
    """Products of matrices."""
    matmul: Any = torch.backends.cuda.matmul
    return _switched(allowed, matmul, (matmul,))


@contextlib.contextmanager
def _switched(allowed: bool, switch: Any, operations: tuple[Any, ...]) -> Iterator[None]:
    """torch has an old way to say it, `allow_tf32`, and a new one, `fp32_precision` of each operation.

    Once they disagree, reading the old one is an error. It is set all the same where nobody has used the new one, since
    torch.compile reads it, and the new one would take it away.

    Args:
        allowed: whether TF32 is.
        switch: what has the old way.
        operations: what have the new one, all that the switch stands for.
    """
    before, precisions = _old(switch), [operation.fp32_precision for operation in operations]
    try:
        if before is None:
            for operation in operations:
                operation.fp32_precision = "tf32" if allowed else "ieee"
        else:
            switch.allow_tf32 = allowed
        yield
    finally:
        if before is not None:
            switch.allow_tf32 = before
        # Also after the old way, which turns "none", left to a setting above, into "ieee".
        for operation, precision in zip(operations, precisions, strict=True):
            operation.fp32_precision = precision


def _old(switch: Any) -> bool | None:
    try:
        return bool(switch.allow_tf32)
    except RuntimeError:
        return None
