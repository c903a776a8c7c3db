"""What table 3 and its ladder share: pcapsnet4 on CIFAR-10."""

from __future__ import annotations

from purecaps.experiments.paper.entry import Results
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.training import TrainingJob
from purecaps.experiments.paper.verdict import Published
from purecaps.train.recipe import Recipe

PAPER = Published(10.03, None, "Table 3")
PARAMETERS = 364_896
# Milliseconds a step in bfloat16 on one H200, of one network and of each one more: the first is measured.
BF16_MS = (0.21, 0.16)


def job_of(
    name: str, text: str, recipe: Recipe, seeds: int, scale: Scale, teacher: TrainingJob | None = None
) -> TrainingJob:
    return TrainingJob(
        name=name,
        scale=scale.name,
        model="pcapsnet4",
        data="cifar10",
        recipe_name=text,
        recipe=scale.recipe(recipe.replace(checkpoint_every=2500)),
        seeds=scale.most(seeds),
        images=scale.images,
        averaging=True,
        ms=BF16_MS if recipe.precision == "bf16" else None,
        teacher=teacher,
    )


def averaged_values(results: Results, job: str, view: str) -> tuple[float, ...]:
    """Test errors by test-time averaging, one a seed."""
    record = results.get(job)
    return () if record is None else tuple(run["averaged"][view] for run in record["runs"])
