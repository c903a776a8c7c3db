"""Variational Bayes routing: parents are Gaussians with priors on their means, precisions and shares (Ribeiro 2020)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.nn.routing.capsules import (
    Capsules,
    Compete,
    check_fits,
    check_iterations,
    check_votes,
    float32_inside,
    over_parents,
)
from purecaps.nn.routing.procedure import Routing, need_activations


@float32_inside
def variational(
    votes: Tensor,
    activations: Tensor,
    beta_a: Tensor,
    beta_u: Tensor,
    *,
    iterations: int = 3,
    alpha0: float = 1.0,
    kappa0: float = 1.0,
    psi0: float = 1.0,
    nu0: float | None = None,
    logits: bool = False,
    compete: Compete = over_parents,
) -> Capsules:
    """Fits a mixture of Gaussians to the votes by variational Bayes, with diagonal precisions.

    Priors: shares of parents Dirichlet(alpha0), means Gaussian(0, (kappa0 Lambda)^-1), precisions Wishart(psi0 I, nu0).

        R_ij = 1 / (number of parents)
        repeat `iterations` times:
            r_ij = R_ij a_i,   r_j = sum_i r_ij
            alpha_j = alpha0 + r_j,   kappa_j = kappa0 + r_j,   nu_j = nu0 + r_j
            m_j = sum_i r_ij V_ij / kappa_j
            1/psi_j^d = 1/psi0 + sum_i r_ij (V_ij^d - m_j^d)^2 + kappa0 (m_j^d)^2
            E ln pi_j = digamma(alpha_j) - digamma(sum_k alpha_k)
            E ln|Lambda_j| = sum_{d=0}^{D-1} digamma((nu_j - d) / 2) + D ln 2 + sum_d ln psi_j^d
            ln p_ij = E ln pi_j + E ln|Lambda_j| / 2 - D ln(2 pi) / 2
                      - (D / kappa_j + nu_j sum_d psi_j^d (V_ij^d - m_j^d)^2) / 2
            R_ij = p_ij / sum over parents k of p_ik           (not after the last update of the parents)
        H_j = D ln(2 pi e) / 2 - E ln|Lambda_j| / 2
        a_j = logistic(beta_a_j - (exp(E ln pi_j) H_j + beta_u_j))

    The usual form of 1/psi, scatter around the votes' own mean plus (kappa0 r_j / kappa_j) mean^2, is the same number;
    this one asks for no division by r_j, so a parent without mass is simply its prior. (Facts:
    fabio-deep/Variational-Capsule-Routing, whose networks normalise poses and logits over the batch before they
    take the logistic function: see `VariationalRouting`.)

    Works in float32 on half-precision votes and under autocast.

    Args:
        votes: V [..., I, O, D].
        activations: a_i [..., I], in [0, 1].
        beta_a: [O].
        beta_u: [O].
        iterations: how many updates of the parents, at least 1.
        alpha0: of the Dirichlet prior, above 0.
        kappa0: of the Gaussian prior, above 0.
        psi0: of the Wishart prior, above 0.
        nu0: its degrees of freedom, above D - 1; None is D + 1.
        logits: returns a_j before the logistic function.
        compete: how parents share a child.

    Returns:
        Poses m_j [..., O, D] and activations a_j [..., O].
    """
    check_iterations(iterations)
    check_votes(votes, activations)
    O, D = votes.shape[-2:]
    check_fits(beta_a, "beta_a", (O,), "[O]")
    check_fits(beta_u, "beta_u", (O,), "[O]")
    freedom = D + 1.0 if nu0 is None else nu0
    check_priors(alpha0, kappa0, psi0, freedom, D)
    steps = torch.arange(D, dtype=votes.dtype, device=votes.device)
    scores = votes.new_zeros(votes.shape[:-1])
    for iteration in range(iterations):
        r = compete(scores).exp() * activations[..., None]
        mass = r.sum(dim=-2)
        alpha, kappa, nu = alpha0 + mass, kappa0 + mass, freedom + mass
        m = (r[..., None] * votes).sum(dim=-3) / kappa[..., None]
        squares = (votes - m[..., None, :, :]).square()
        inverse_psi = 1 / psi0 + (r[..., None] * squares).sum(dim=-3) + kappa0 * m.square()
        log_share = alpha.digamma() - alpha.sum(dim=-1, keepdim=True).digamma()
        log_precision = (
            ((nu[..., None] - steps) / 2).digamma().sum(dim=-1) + D * math.log(2) - inverse_psi.log().sum(dim=-1)
        )
        if iteration < iterations - 1:
            distance = (squares * (nu[..., None] / inverse_psi)[..., None, :, :]).sum(dim=-1)
            of_parent = log_share + 0.5 * (log_precision - D * math.log(2 * math.pi) - D / kappa)
            scores = of_parent[..., None, :] - 0.5 * distance
    entropy = 0.5 * (D * math.log(2 * math.pi * math.e) - log_precision)
    presence = beta_a - (log_share.exp() * entropy + beta_u)
    return Capsules(m, presence if logits else presence.sigmoid())


def check_priors(alpha0: float, kappa0: float, psi0: float, nu0: float, pose_size: int) -> None:
    for name, value in (("alpha0", alpha0), ("kappa0", kappa0), ("psi0", psi0)):
        if not value > 0:
            raise ConfigError(f"{name}: expected a number above 0, got {value!r}")
    if not nu0 > pose_size - 1:
        raise ConfigError(f"nu0: expected a number above D - 1 = {pose_size - 1}, got {nu0!r}")


class VariationalRouting(Routing):
    """`variational` with beta_a and beta_u for each parent type, both from 0, and batch normalisation.

    Poses are normalised over batch, positions and pose numbers, activations before the logistic function over
    batch and positions, each parent type by itself and without learned scales, as in the published networks. That takes
    any constant of a type away again, so that both betas have no effect there and are kept at 0; without it they are
    learned.

    Args:
        children: not used.
        parents: O.
        pose_size: D.
        iterations: as for `variational`, and so are the priors.
        batch_norm: False leaves both normalisations out.
    """

    name = "variational"
    reads_activations = True

    def __init__(
        self,
        children: int | None,
        parents: int,
        pose_size: int,
        *,
        iterations: int = 3,
        alpha0: float = 1.0,
        kappa0: float = 1.0,
        psi0: float = 1.0,
        nu0: float | None = None,
        batch_norm: bool = True,
    ) -> None:
        super().__init__()
        check_iterations(iterations)
        check_priors(alpha0, kappa0, psi0, pose_size + 1.0 if nu0 is None else nu0, pose_size)
        self.iterations = iterations
        self.alpha0, self.kappa0, self.psi0, self.nu0 = alpha0, kappa0, psi0, nu0
        self.beta_a = nn.Parameter(torch.zeros(parents))
        self.beta_u = nn.Parameter(torch.zeros(parents))
        if batch_norm:  # their gradient is rounding, which Adam would follow
            self.beta_a.requires_grad_(False)
            self.beta_u.requires_grad_(False)
        self.pose_norm = nn.BatchNorm1d(parents, affine=False) if batch_norm else None
        self.activation_norm = nn.BatchNorm1d(parents, affine=False) if batch_norm else None

    def route(self, votes: Tensor, activations: Tensor | None, parents: Tensor | None, compete: Compete) -> Capsules:
        """As for every procedure, but that activations come before the logistic function; see `finish`."""
        return variational(
            votes,
            need_activations(activations, self.name),
            self.beta_a,
            self.beta_u,
            iterations=self.iterations,
            alpha0=self.alpha0,
            kappa0=self.kappa0,
            psi0=self.psi0,
            nu0=self.nu0,
            logits=True,
            compete=compete,
        )

    def finish(self, capsules: Capsules) -> Capsules:
        poses, presence = capsules
        if self.pose_norm is not None and self.activation_norm is not None:
            poses = self.pose_norm(poses.reshape(-1, *poses.shape[-2:])).reshape(poses.shape)
            presence = self.activation_norm(presence.reshape(-1, presence.shape[-1])).reshape(presence.shape)
        return Capsules(poses, presence.sigmoid())

    def extra_repr(self) -> str:
        return f"{self.iterations} iterations"
