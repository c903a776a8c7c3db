"""Inverted dot-product attention routing: children ask which parent they fit (Tsai et al. 2020)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from purecaps.nn.routing.capsules import (
    Capsules,
    Compete,
    check_fits,
    check_iterations,
    check_votes,
    float32_inside,
    of_lengths,
    over_parents,
)
from purecaps.nn.routing.procedure import Routing


@float32_inside
def inverted_dot_product(
    votes: Tensor,
    *,
    iterations: int = 2,
    parents: Tensor | None = None,
    scale: Tensor | None = None,
    shift: Tensor | None = None,
    compete: Compete = over_parents,
) -> Capsules:
    """Procedure 1 of the paper.

        p_j = LayerNorm( sum_i V_ij / (number of parents) )           unless `parents` are given
        repeat:
            r_ij = exp(p_j . V_ij / sqrt(D)) / sum over parents k of exp(p_k . V_ik / sqrt(D))
            p_j  = LayerNorm( sum_i r_ij V_ij )

    Attention is inverted: parents compete for each child. The root of D and the count of iterations, in which the
    first p_j is one, are those of the authors' code (apple/ml-capsules-inverted-attention-routing).

    Sequential routing runs all iterations of a layer before the next layer. Concurrent routing, the paper's choice,
    runs one iteration of every layer, then the next of every layer: call it with iterations=1, first without
    `parents`, then with the parents that the last call gave.

    Works in float32 on half-precision votes and under autocast.

    Args:
        votes: V [..., I, O, D].
        iterations: how often p is set, at least 1.
        parents: poses p [..., O, D] to start from.
        scale: [D], layer normalisation's weight.
        shift: [D], layer normalisation's bias.
        compete: how parents share a child.

    Returns:
        Poses p [..., O, D] and their lengths [..., O]. Lengths after normalisation say little; the published networks
        read class scores off the poses.
    """
    check_iterations(iterations)
    check_votes(votes)
    D = votes.shape[-1]
    for tensor, name in ((scale, "scale"), (shift, "shift")):
        if tensor is not None:
            check_fits(tensor, name, (D,), "[D]")
    if parents is not None:
        check_fits(parents, "parents", (*votes.shape[:-3], *votes.shape[-2:]), "[..., O, D]")
    p = parents
    for _ in range(iterations):
        logits = votes.new_zeros(votes.shape[:-1])
        if p is not None:
            logits = (votes * (p / math.sqrt(D))[..., None, :, :]).sum(dim=-1)
        p = F.layer_norm((compete(logits).exp()[..., None] * votes).sum(dim=-3), (D,), scale, shift)
    assert p is not None  # there is at least one iteration
    return of_lengths(p)


class InvertedDotProductRouting(Routing):
    """`inverted_dot_product` with the layer normalisation's learned scale and shift, which all parents share.

    Args:
        children: not used, and so is `parents`.
        parents: O.
        pose_size: D.
        iterations: as for `inverted_dot_product`.
    """

    name = "inverted_dot_product"
    starts_from_parents = True

    def __init__(self, children: int | None, parents: int, pose_size: int, *, iterations: int = 2) -> None:
        super().__init__()
        check_iterations(iterations)
        self.iterations = iterations
        self.scale = nn.Parameter(torch.ones(pose_size))
        self.shift = nn.Parameter(torch.zeros(pose_size))

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        return inverted_dot_product(
            votes, iterations=self.iterations, parents=parents, scale=self.scale, shift=self.shift, compete=compete
        )

    def extra_repr(self) -> str:
        return f"{self.iterations} iterations"
