"""The networks that table 4 and the white-box figure attack."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from purecaps.experiments.paper import mnist
from purecaps.experiments.paper.attacking import METHODS, AttackJob
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.training import TrainingJob
from purecaps.train.recipes import RECIPES

SEEDS = 3
AGAIN = (
    "A network whose weights are not there is trained again before it is attacked, so that two attacks may have met "
    "two trainings of one seed. A record says which; those of the H200 do not yet."
)
EPS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
CHANGES = {"val_size": 0, "precision": "tf32"}
ADVERSARY = {"adversary_eps": 0.1, "adversary_steps": 5}


@dataclass(frozen=True)
class Target:
    """A network to attack: its name in tables, and the training that makes it."""

    text: str
    job: TrainingJob


def targets(scale: Scale) -> dict[str, Target]:
    """What both entries attack, by the name that their jobs have."""
    return {
        "baseline": Target("CNN baseline, 35.4M", baseline(scale)),
        "pcapsnet2-paper": Target("pcapsnet2, the paper's recipe", mnist.job_of("pcapsnet2", "paper", scale)),
        "pcapsnet2-best": Target("pcapsnet2, our best", mnist.job_of("pcapsnet2", "best", scale)),
        "cnn-small": Target("CNN of 3,888 parameters", cnn_small(scale)),
    }


def hardened(scale: Scale) -> dict[str, Target]:
    """P-CapsNets that were trained against perturbations of up to 0.1."""
    found = {}
    for model in ("pcapsnet2", "pcapsnet0"):
        plain = mnist.job_of(model, "best", scale)
        recipe = plain.recipe.replace(**ADVERSARY)
        job = dataclasses.replace(
            plain,
            name=f"whitebox/{model}-hardened",
            recipe_name="our best, adversarial",
            recipe=recipe,
            seeds=scale.most(SEEDS),
        )
        found[f"{model}-hardened"] = Target(f"{model}, adversarial training", job)
    return found


def baseline(scale: Scale) -> TrainingJob:
    """The CNN of Sabour et al., trained one seed at a time: it fills a device by itself."""
    # Its state is 425 MB, so that it is saved only when asked to stop and at the end.
    options: dict[str, Any] = {"checkpoint_every": 10_000, "precision": "bf16"}
    return _plain("table4/cnn-baseline", "cnn_baseline", "cnn", scale, together=False, **options)


def lenet(scale: Scale) -> TrainingJob:
    """The substitute whose gradients black-box attacks take."""
    return _plain("table4/lenet", "lenet", "cnn", scale)


def cnn_small(scale: Scale) -> TrainingJob:
    return _plain("table4/cnn-small", "cnn_small", "cnn_small", scale, steps=20_000)


def _plain(name: str, model: str, recipe: str, scale: Scale, *, together: bool = True, **changes: Any) -> TrainingJob:
    return TrainingJob(
        name=name,
        scale=scale.name,
        model=scale.model(model),
        data="mnist",
        recipe_name=recipe,
        recipe=scale.recipe(RECIPES[recipe].replace(**{**CHANGES, **changes})),
        seeds=scale.most(SEEDS),
        images=scale.images,
        together=together,
    )


def attack_of(
    name: str, target: TrainingJob, source: TrainingJob | None, method: str, counts: tuple[int, ...], scale: Scale
) -> AttackJob:
    full = scale.images is None
    return AttackJob(
        name=name,
        scale=scale.name,
        target=target,
        source=source,
        method=method,
        eps=EPS,
        counts=counts,
        seeds=scale.most(SEEDS),
        steps=METHODS[method].steps if full else min(2, METHODS[method].steps),
    )
