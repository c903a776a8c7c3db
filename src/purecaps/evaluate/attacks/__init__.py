"""Adversarial attacks on any network that maps images in [0, 1] to class scores, and what is left of its accuracy.

All perturbations are bounded in the maximum norm: no pixel changes by more than eps, and none leaves [0, 1].
"""

from __future__ import annotations

from purecaps.evaluate.attacks.attack import Attack
from purecaps.evaluate.attacks.fgsm import by_fgsm, fgsm
from purecaps.evaluate.attacks.loss import AttackLoss, default_loss
from purecaps.evaluate.attacks.measure import AttackResult, Point, measure
from purecaps.evaluate.attacks.noise import by_noise
from purecaps.evaluate.attacks.pgd import by_pgd, pgd
from purecaps.evaluate.attacks.uap import Generator, by_universal, train_universal

__all__ = [
    "Attack",
    "AttackLoss",
    "AttackResult",
    "Generator",
    "Point",
    "by_fgsm",
    "by_noise",
    "by_pgd",
    "by_universal",
    "default_loss",
    "fgsm",
    "measure",
    "pgd",
    "train_universal",
]
