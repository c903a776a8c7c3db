"""Muon: momentum whose matrices are made orthogonal before they are taken as a step.

Jordan et al. 2024 (https://kellerjordan.github.io/posts/muon): a step in which every direction of a layer's matrix
counts alike, and not the few that dominate its gradient. With steps of 0.2 root mean square, as AdamW's are about
(Liu et al. 2025, arXiv 2502.16982), the same learning rates and weight decay suit both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

# Of Jordan's quintic: five rounds bring singular values from 0.003 to 1 to between 0.7 and 1.2.
ROUNDS = 5
A, B, C = 3.4445, -4.7750, 2.0315
RMS = 0.2
KERNEL_AXES = 7  # of a capsule kernel [kh, kw, C, O, g, n, p]


class Muon(torch.optim.Optimizer):
    """Orthogonal steps with Nesterov momentum and decoupled weight decay; state and rate may live on the device.

    Args:
        params: capsule kernels [kh, kw, C, O, g, n, p]; of any others the first axis is the output.
        lr: learning rate, a number or a tensor.
        momentum: decay of the gradient average.
        weight_decay: decoupled.
        stacked: whether every parameter has an axis of networks in front.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float | Tensor,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        *,
        stacked: bool = False,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.stacked = stacked

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                average = state["momentum"].lerp_(parameter.grad, 1 - momentum)
                ahead = parameter.grad.lerp(average, momentum)
                parameter.mul_(1 - rate * group["weight_decay"])
                parameter.sub_(rate * orthogonal_step(ahead, stacked=self.stacked))
        return loss


def orthogonal_step(gradient: Tensor, *, stacked: bool = False) -> Tensor:
    """A gradient as its nearest orthogonal matrices, scaled to a root mean square of about `RMS`.

    A capsule kernel is a matrix (kh, kw, c, n) to (o, p) for each g; a vector is a matrix of one row.

    Args:
        gradient: of a parameter, in its shape.
        stacked: whether there is an axis of networks in front, each with matrices of its own.
    """
    axes = gradient.dim() - int(stacked)
    front = [0] if stacked else []
    if axes == KERNEL_AXES:
        order = [*front, *(len(front) + axis for axis in (4, 3, 6, 0, 1, 2, 5))]
        moved = gradient.permute(order)
        matrices = moved.flatten(len(front) + 3).flatten(len(front) + 1, len(front) + 2)  # [.., g, (o, p), (...)]
        stepped = orthogonal(matrices).view(moved.shape)
        back = [order.index(axis) for axis in range(gradient.dim())]
        return stepped.permute(back)
    networks = gradient.shape[: len(front)]
    rows = gradient.flatten(len(front) + 1) if axes > 1 else gradient.reshape(*networks, 1, -1)
    return orthogonal(rows).view(gradient.shape)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [..., m, n] with all singular values at about 1, times `RMS` sqrt(max(m, n)), by Newton and Schulz."""
    m, n = matrices.shape[-2:]
    x = matrices.reshape(-1, m, n)
    x = x.mT if m > n else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-12)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=B, alpha=C), x, beta=A)
    x = x.mT if m > n else x
    return RMS * math.sqrt(max(m, n)) * x.reshape(matrices.shape)
