"""Attention routing: each parent attends to the child capsules, in one pass (Choi et al. 2019, Atten-Caps)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from purecaps.nn.routing.capsules import (
    Capsules,
    Compete,
    check_fits,
    check_votes,
    float32_inside,
    of_lengths,
)
from purecaps.nn.routing.procedure import Routing, need_children


@float32_inside
def attention(votes: Tensor, weight: Tensor) -> Capsules:
    """A learned linear map of all votes for a parent gives its attention to each child.

        b_nj = sum over children i and numbers d of  u_ij^d weight_j[i, d, n]
        c_nj = exp(b_nj) / sum over children m of exp(b_mj)
        s_j  = sum over children n of  c_nj u_nj

    Here the softmax is over the children, the input capsule channels: each parent shares out its attention, and
    parents do not compete. There is nothing to iterate. (Facts: chjw1475/Attention-Routing-Capsules.)

    Works in float32 on half-precision votes and under autocast.

    Args:
        votes: u [..., I, O, D].
        weight: [O, I, D, I].

    Returns:
        Poses s [..., O, D] and their lengths [..., O].
    """
    check_votes(votes)
    I, O, D = votes.shape[-3:]
    check_fits(weight, "weight", (O, I, D, I), "[O, I, D, I]")
    c = torch.einsum("...iod,oidn->...no", votes, weight).softmax(dim=-2)
    return of_lengths((c[..., None] * votes).sum(dim=-3))


class AttentionRouting(Routing):
    """`attention`, then the network's "capsule activation": an affine map of each parent's pose.

    The tanh that follows it in the network comes after the residual connection, so it is not in here.

    Args:
        children: I.
        parents: O.
        pose_size: D.
    """

    name = "attention"

    def __init__(self, children: int | None, parents: int, pose_size: int) -> None:
        super().__init__()
        count = need_children(children, self.name)
        self.weight = nn.Parameter(torch.empty(parents, count, pose_size, count))
        self.transform = nn.Parameter(torch.empty(parents, pose_size, pose_size))
        self.bias = nn.Parameter(torch.zeros(parents, pose_size))
        # Glorot's bounds with the fans that the authors' code has, which creates all parents' weights as one kernel.
        _uniform(self.weight, pose_size * count, pose_size * count * parents)
        _uniform(self.transform, pose_size, pose_size * parents)

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        poses = attention(votes, self.weight).poses
        return of_lengths(torch.einsum("...od,ode->...oe", poses, self.transform.to(poses.dtype)) + self.bias)


def _uniform(weight: Tensor, fan_in: int, fan_out: int) -> None:
    bound = (6 / (fan_in + fan_out)) ** 0.5
    nn.init.uniform_(weight, -bound, bound)
