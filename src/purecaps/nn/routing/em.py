"""EM routing: parents are Gaussians that explain the votes (Hinton, Sabour and Frosst 2018)."""

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
    log_weights,
    over_parents,
    shares,
)
from purecaps.nn.routing.procedure import Routing, need_activations

VARIANCE_FLOOR = 5e-4
INVERSE_TEMPERATURE = 0.01
# What beta_a is learned in units of, as in the authors' code. lambda ends at 0.0014, so that a parent without votes has
# an activation of logistic(0.0014 beta_a): 0.5 wherever an optimiser could take beta_a itself. Then no two classes can
# be further apart than 0.5, and the spread loss's margin of 0.9 is out of reach.
BETA_A_UNIT = 5000.0


def inverse_temperature_at(iteration: int, limit: float) -> float:
    """lambda of iteration 0, 1, ...: limit (1 - 0.95^(iteration + 1))."""
    return limit * (1 - 0.95 ** (iteration + 1))


@float32_inside
def em(
    votes: Tensor,
    activations: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    *,
    iterations: int = 3,
    inverse_temperature: float = INVERSE_TEMPERATURE,
    variance_floor: float = VARIANCE_FLOOR,
    compete: Compete = over_parents,
) -> Capsules:
    """Procedure 1 of the paper.

        R_ij = 1 / (number of parents)
        repeat `iterations` times, t = 0, 1, ...:
          M-step:  r_ij = R_ij a_i,   r_j = sum_i r_ij
                   mu_j^h      = sum_i r_ij V_ij^h / r_j
                   (s_j^h)^2   = sum_i r_ij (V_ij^h - mu_j^h)^2 / r_j + floor
                   cost_j      = sum_h (beta_u_j + log s_j^h) r_j
                   a_j         = logistic(lambda_t (beta_a_j - cost_j)),   lambda_t = limit (1 - 0.95^(t+1))
          E-step (not after the last M-step):
                   log p_ij    = -sum_h ( (V_ij^h - mu_j^h)^2 / (2 (s_j^h)^2) + log(2 pi (s_j^h)^2) / 2 )
                   R_ij        = a_j p_ij / sum over parents k of a_k p_ik

    The schedule of lambda is the authors' answer on OpenReview; the floor under the variance, added to it, is that of
    their code (google-research, capsule_em: 5e-4). The E-step and the shares r_ij / r_j work on logarithms, a_j's
    included, so that no density under- or overflows. Gradients go through every iteration.

    Works in float32 on half-precision votes and under autocast.

    Args:
        votes: V [..., I, O, D].
        activations: a_i [..., I], in [0, 1].
        beta_a: [O], minus the cost of an active parent.
        beta_u: [O], minus the cost of describing one number of a child's pose by no parent.
        iterations: how many M-steps, at least 1.
        inverse_temperature: the limit of lambda.
        variance_floor: added to every variance.
        compete: how parents share a child.

    Returns:
        Poses mu_j [..., O, D] and activations a_j [..., O].
    """
    check_iterations(iterations)
    check_votes(votes, activations)
    parents = votes.shape[-2]
    check_fits(beta_a, "beta_a", (parents,), "[O]")
    check_fits(beta_u, "beta_u", (parents,), "[O]")
    logits = votes.new_zeros(votes.shape[:-1])
    for iteration in range(iterations):
        log_r = compete(logits)
        mass = (log_r.exp() * activations[..., None]).sum(dim=-2)
        share = shares(log_weights(log_r, activations))[..., None]
        mu = (share * votes).sum(dim=-3)
        squares = (votes - mu[..., None, :, :]).square()
        variance = (share * squares).sum(dim=-3) + variance_floor
        cost = (beta_u + 0.5 * variance.log().mean(dim=-1)) * mass * votes.shape[-1]
        weighed = inverse_temperature_at(iteration, inverse_temperature) * (beta_a - cost)
        if iteration < iterations - 1:
            distance = (squares * (0.5 / variance)[..., None, :, :]).sum(dim=-1)
            spread = 0.5 * (variance.log() + math.log(2 * math.pi)).sum(dim=-1)
            logits = (F.logsigmoid(weighed) - spread)[..., None, :] - distance
    return Capsules(mu, weighed.sigmoid())


class EMRouting(Routing):
    """`em` with beta_a, in units of `BETA_A_UNIT`, and beta_u learned for each parent type; both start at 0.

    Args:
        children: not used.
        parents: O.
        pose_size: D, not used.
        iterations: as for `em`, and so are the others.
    """

    name = "em"
    reads_activations = True

    def __init__(
        self,
        children: int | None,
        parents: int,
        pose_size: int,
        *,
        iterations: int = 3,
        inverse_temperature: float = INVERSE_TEMPERATURE,
        variance_floor: float = VARIANCE_FLOOR,
    ) -> None:
        super().__init__()
        check_iterations(iterations)
        self.iterations = iterations
        self.inverse_temperature, self.variance_floor = inverse_temperature, variance_floor
        self.beta_a = nn.Parameter(torch.zeros(parents))
        self.beta_u = nn.Parameter(torch.zeros(parents))

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        return em(
            votes,
            need_activations(activations, self.name),
            BETA_A_UNIT * self.beta_a,
            self.beta_u,
            iterations=self.iterations,
            inverse_temperature=self.inverse_temperature,
            variance_floor=self.variance_floor,
            compete=compete,
        )

    def extra_repr(self) -> str:
        return f"{self.iterations} iterations, inverse temperature {self.inverse_temperature}"
