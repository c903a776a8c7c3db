"""Dynamic routing: parents win the children that agree with them (Sabour, Frosst and Hinton 2017)."""

from __future__ import annotations

import torch
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
    squash,
)
from purecaps.nn.routing.procedure import Routing


@float32_inside
def dynamic(
    votes: Tensor,
    *,
    iterations: int = 3,
    bias: Tensor | None = None,
    leaky: bool = False,
    compete: Compete = over_parents,
) -> Capsules:
    """Procedure 1 of the paper.

        b_ij = 0
        repeat `iterations` times:
            c_ij = exp(b_ij) / sum over parents k of exp(b_ik)
            v_j  = squash(bias_j + sum over children i of c_ij u_ij),   squash(s) = |s|^2 / (1 + |s|^2) s / |s|
            b_ij = b_ij + u_ij . v_j

    Gradients go through every iteration, as in the authors' code (Sarasra/models, research/capsules), whence also
    the bias and the leak. The softmax is over parents: over children is a common mistake.

    Works in float32 on half-precision votes and under autocast.

    Args:
        votes: u [..., I, O, D].
        iterations: how often coefficients are set, at least 1. One iteration is a plain average over parents.
        bias: [O, D], added to the sum of the weighted votes.
        leaky: gives each child one more logit, fixed at 0, for "none of the parents".
        compete: how parents share a child.

    Returns:
        Poses v [..., O, D] and their lengths [..., O].
    """
    check_iterations(iterations)
    check_votes(votes)
    if bias is not None:
        check_fits(bias, "bias", votes.shape[-2:], "[O, D]")
    logits = votes.new_zeros(votes.shape[:-1])
    for iteration in range(iterations):
        if leaky:
            none = logits.new_zeros((*logits.shape[:-1], 1))
            c = compete(torch.cat([logits, none], dim=-1))[..., :-1].exp()
        else:
            c = compete(logits).exp()
        s = (c[..., None] * votes).sum(dim=-3)
        v = squash(s if bias is None else s + bias)
        if iteration < iterations - 1:
            logits = logits + (votes * v[..., None, :, :]).sum(dim=-1)
    return of_lengths(v)


class DynamicRouting(Routing):
    """`dynamic` with a learned bias.

    Args:
        children: not used.
        parents: O.
        pose_size: D.
        iterations: as for `dynamic`.
        bias: what each number of the bias starts at, or None for no bias. The authors' code starts at 0.1.
        leaky: as for `dynamic`.
    """

    name = "dynamic"
    bias: nn.Parameter | None

    def __init__(
        self,
        children: int | None,
        parents: int,
        pose_size: int,
        *,
        iterations: int = 3,
        bias: float | None = None,
        leaky: bool = False,
    ) -> None:
        super().__init__()
        check_iterations(iterations)
        self.iterations, self.leaky = iterations, leaky
        value = None if bias is None else nn.Parameter(torch.full((parents, pose_size), float(bias)))
        self.register_parameter("bias", value)

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        return dynamic(votes, iterations=self.iterations, bias=self.bias, leaky=self.leaky, compete=compete)

    def extra_repr(self) -> str:
        return f"{self.iterations} iterations" + (", leaky" if self.leaky else "")
