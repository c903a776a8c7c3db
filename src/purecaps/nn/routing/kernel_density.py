"""Routing as clustering by a weighted kernel density of the votes: mean shift and EM-like (Zhang et al. 2018).

The density is  f = sum_ij r_ij k(|v_j - u_ij|^2)  with the Epanechnikov profile k(x) = 1 - x. Its slope is constant, so
the best v_j for given r is the weighted mean of the votes: what makes both procedures fast.

Both are reconstructions: the paper (arXiv 1805.10807) came without code. `frms` follows what one of its authors
published later for text (andyweizhao/NLP-Capsule, layer.py, KDE_routing), with the squash of Sabour et al.; `frem` is
built from the same parts. Both compare squashed votes with squashed poses, so that distances are bounded and a
capsule's length can be its activation.
"""

from __future__ import annotations

from torch import Tensor

from purecaps.nn.routing.capsules import (
    Capsules,
    Compete,
    check_iterations,
    check_votes,
    float32_inside,
    log_weights,
    of_lengths,
    over_parents,
    shares,
    squash,
)
from purecaps.nn.routing.procedure import Routing

# Two vectors of a length below 1 are less than 2 apart: with this bandwidth every vote is in the kernel's support.
WHOLE_BALL = 2.0
# Rounding can put votes at opposite ends of the ball on the support's edge, where the logarithm would be infinite.
LEAST_DENSITY = 1e-6


@float32_inside
def frms(
    votes: Tensor,
    activations: Tensor | None = None,
    *,
    iterations: int = 2,
    step: float = 1.0,
    compete: Compete = over_parents,
) -> Capsules:
    """Fast routing by mean shift.

        b_ij = 0
        repeat `iterations` times:
            r_ij = a_i exp(b_ij) / sum over parents k of exp(b_ik)
            v_j  = squash( sum_i r_ij u_ij / sum_i r_ij )
            b_ij = b_ij + step (1 - |squash(u_ij) - v_j|^2)

    Works in float32 on half-precision votes and under autocast.

    Args:
        votes: u [..., I, O, D].
        activations: a [..., I]; without them all children weigh the same.
        iterations: how many shifts, at least 1.
        step: how far a kernel's value moves the logits.
        compete: how parents share a child.

    Returns:
        Poses v [..., O, D] and their lengths [..., O].
    """
    check_iterations(iterations)
    check_votes(votes, activations)
    logits = votes.new_zeros(votes.shape[:-1])
    squashed = squash(votes)
    for iteration in range(iterations):
        v = _weighted_mean(votes, log_weights(compete(logits), activations))
        if iteration < iterations - 1:
            logits = logits + step * (1 - _distances(squashed, v))
    return of_lengths(v)


@float32_inside
def frem(
    votes: Tensor,
    activations: Tensor | None = None,
    *,
    iterations: int = 2,
    bandwidth: float = WHOLE_BALL,
    compete: Compete = over_parents,
) -> Capsules:
    """Fast routing by an EM-like alternation, parents being components of a mixture with weights pi_j.

        r_ij = 1 / (number of parents)
        repeat `iterations` times:
          M-step:  v_j  = squash( sum_i r_ij a_i u_ij / sum_i r_ij a_i )
                   pi_j = sum_i r_ij a_i / sum_i a_i
          E-step:  r_ij = pi_j k_ij / sum over parents k of pi_k k_ik,   k_ij = 1 - |squash(u_ij) - v_j|^2 / bandwidth^2

    Works in float32 on half-precision votes and under autocast.

    Args:
        votes: u [..., I, O, D].
        activations: a [..., I]; without them all children weigh the same.
        iterations: how many M-steps, at least 1.
        bandwidth: how far a kernel reaches; k is 0 beyond. At 2 it reaches every squashed vote.
        compete: how parents share a child.

    Returns:
        Poses v [..., O, D] and their lengths [..., O].
    """
    check_iterations(iterations)
    check_votes(votes, activations)
    logits = votes.new_zeros(votes.shape[:-1])
    squashed = squash(votes)
    for iteration in range(iterations):
        log_r = log_weights(compete(logits), activations)
        v = _weighted_mean(votes, log_r)
        if iteration < iterations - 1:
            # pi's denominator is the same for all parents of a child, so it drops out of r.
            prior = log_r.logsumexp(dim=-2)
            density = (1 - _distances(squashed, v) / bandwidth**2).clamp(min=LEAST_DENSITY)
            logits = prior[..., None, :] + density.log()
    return of_lengths(v)


def _weighted_mean(votes: Tensor, log_weight: Tensor) -> Tensor:
    """The squashed mean of the votes [..., O, D]."""
    return squash((shares(log_weight)[..., None] * votes).sum(dim=-3))


def _distances(squashed: Tensor, v: Tensor) -> Tensor:
    return (squashed - v[..., None, :, :]).square().sum(dim=-1)


class FRMSRouting(Routing):
    """`frms`; nothing is learned.

    Args:
        children: not used, and so are `parents` and `pose_size`.
        parents: O.
        pose_size: D.
        iterations: as for `frms`, and so is `step`.
    """

    name = "frms"
    reads_activations = True

    def __init__(
        self, children: int | None, parents: int, pose_size: int, *, iterations: int = 2, step: float = 1.0
    ) -> None:
        super().__init__()
        check_iterations(iterations)
        self.iterations, self.step = iterations, step

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        return frms(votes, activations, iterations=self.iterations, step=self.step, compete=compete)

    def extra_repr(self) -> str:
        return f"{self.iterations} iterations"


class FREMRouting(Routing):
    """`frem`; nothing is learned.

    Args:
        children: not used, and so are `parents` and `pose_size`.
        parents: O.
        pose_size: D.
        iterations: as for `frem`, and so is `bandwidth`.
    """

    name = "frem"
    reads_activations = True

    def __init__(
        self, children: int | None, parents: int, pose_size: int, *, iterations: int = 2, bandwidth: float = WHOLE_BALL
    ) -> None:
        super().__init__()
        check_iterations(iterations)
        self.iterations, self.bandwidth = iterations, bandwidth

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        return frem(votes, activations, iterations=self.iterations, bandwidth=self.bandwidth, compete=compete)

    def extra_repr(self) -> str:
        return f"{self.iterations} iterations"
