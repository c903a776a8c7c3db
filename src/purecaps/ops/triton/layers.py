"""A trained network layer by layer: one fused kernel each, uint8 pixels read as they are, nothing kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from purecaps.ops.triton.problem import problem_of
from purecaps.ops.triton.stack import Layer, refold_rows


def run_layers(u: Tensor, weights: Sequence[Tensor], layers: Sequence[Layer], precision: str) -> Tensor:
    """Lengths of the last capsules before squashing [B, O, H', W'].

    Args:
        u: input capsules [1, B, C, H, W, m, n]: uint8 pixels, which count as 255ths, or numbers in the weights' dtype.
        weights: each layer's kernel [1, kh, kw, C, O, n, p].
        layers: the rest of each layer; in the last one whole capsules are squashed.
        precision: of float32 products, "tf32" or "ieee".
    """
    from purecaps.ops.triton.forward import launch_forward

    r: Tensor | None = None
    for w, layer in zip(weights, layers, strict=True):
        if r is not None:
            refolded = refold_rows(u, w.shape[5])
            assert refolded is not None  # `run_of` in __init__.py saw to it
            u = refolded
        problem = replace(problem_of(u, w, layer.geometry, layer.norm), itemsize=w.element_size())
        scale = 1 / 255 if u.dtype == torch.uint8 else 1.0
        u, r = launch_forward(u, w, problem, layer.slope, precision, activate=True, scale=scale)
    assert r is not None
    return r.squeeze(0).flatten(-2).squeeze(-1)
