"""Self-attention routing: votes that agree with all others weigh more, in one pass (Mazzia et al. 2021)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from purecaps.nn.routing.capsules import (
    Capsules,
    Compete,
    check_fits,
    check_votes,
    float32_inside,
    of_lengths,
    over_parents,
)
from purecaps.nn.routing.procedure import Routing, need_children
from purecaps.ops.reference import squash as exponential_squash


@float32_inside
def self_attention(votes: Tensor, *, prior: Tensor | None = None, compete: Compete = over_parents) -> Capsules:
    """The routing of Efficient-CapsNet, without iterations.

        A_ij = sum over children k of  u_ij . u_kj / sqrt(D)
        c_ij = exp(A_ij) / sum over parents k of exp(A_ik)
        v_j  = squash( sum_i (c_ij + prior_ij) u_ij ),      squash(s) = (1 - exp(-|s|)) s / |s|

    The sum over k is taken before the product, so the cost is linear in the children.

    Works in float32 on half-precision votes and under autocast.

    Args:
        votes: u [..., I, O, D].
        prior: [I, O], added to the coefficients.
        compete: how parents share a child.

    Returns:
        Poses v [..., O, D] and their lengths [..., O].
    """
    check_votes(votes)
    I, O, D = votes.shape[-3:]
    if prior is not None:
        check_fits(prior, "prior", (I, O), "[I, O]")
    total = votes.sum(dim=-3, keepdim=True) / math.sqrt(D)
    c = compete((votes * total).sum(dim=-1)).exp()
    if prior is not None:
        c = c + prior
    return of_lengths(exponential_squash((c[..., None] * votes).sum(dim=-3), (-1,)))


class SelfAttentionRouting(Routing):
    """`self_attention` with a learned prior that starts at 0.

    Args:
        children: I.
        parents: O.
        pose_size: D, not used.
    """

    name = "self_attention"

    def __init__(self, children: int | None, parents: int, pose_size: int) -> None:
        super().__init__()
        self.prior = nn.Parameter(torch.zeros(need_children(children, self.name), parents))

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        return self_attention(votes, prior=self.prior, compete=compete)
