"""Ablation: capsule layers against plain convolution layers of equal parameters and of equal multiply-adds.

The paper says that convolution layers in a CapsNet are not efficient and capsule layers are their more general form,
but compares with no CNN of equal size. Here pcapsnet2 and 3 stand beside CNNs of the same depth, kernels, strides
and maps: no bias, no batch norm, ReLU. All are trained alike, with cross-entropy on the scores (20 times the length of
a capsule, or the logit), each at three learning rates between which held-out images choose.

Command: purecaps reproduce ablation-plain
Time: about 9 minutes on one H200
Result: pcapsnet2 about 0.75 %, pcapsnet3 about 0.45 %; a CNN of 3,888 parameters about 0.8 %, so that capsules
    are not clearly ahead
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper import comparison
from purecaps.experiments.paper.comparison import MS, PLAIN_RECIPE, Variant, at_scale, paper_network, training
from purecaps.experiments.paper.entry import Entry, Results, Shown
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale

PLAIN = {"pcapsnet2": "cnn_small", "pcapsnet3": "cnn_medium"}
RATES = (0.01, 0.003, 0.001)
CAPSULES, EQUAL_SIZE, EQUAL_WORK = "capsule layers", "convolutions of equal parameters", "convolutions of equal work"


def variants(scale: Scale) -> list[Variant]:
    rates = RATES if scale.images is None else RATES[:1]
    found = []
    for model in at_scale(list(PLAIN), scale):
        found.append(Variant(model, CAPSULES, tuple(paper_network(model, scale, rate) for rate in rates)))
        for text, name in ((EQUAL_SIZE, PLAIN[model]), (EQUAL_WORK, f"{PLAIN[model]}_work")):
            leaf = name.replace("_", "-")
            jobs = (
                training(
                    f"ablation-plain/{leaf}-lr{rate:g}",
                    name,
                    scale,
                    recipe=PLAIN_RECIPE,
                    recipe_name="best, on logits",
                    ms=MS["cnn"],
                    lr=rate,
                )
                for rate in rates
            )
            found.append(Variant(model, text, tuple(jobs)))
    return found


def plan(scale: Scale) -> Sequence[Job]:
    return comparison.jobs_of(variants(scale))


def show(results: Results) -> Shown:
    listed = variants(results.scale)
    picture = comparison.picture(
        listed,
        results,
        "Test errors of two capsule networks and of CNNs of equal parameters and equal work, seed by seed.",
        "Each at the learning rate that held-out images chose.",
    )
    table = comparison.table("Capsules and plain convolutions", listed, results)
    return Shown((table, comparison.rates_table(listed, results)), (picture,), _findings(listed, results))


def _findings(listed: Sequence[Variant], results: Results) -> tuple[str, ...]:
    sentences = []
    for base in listed:
        if base.text != CAPSULES:
            continue
        for other in (each for each in listed if each.group == base.group and each is not base):
            apart = comparison.error_difference(other, base, results)
            if apart is None:
                continue
            claim = f"{base.group}: that capsule layers err less than {other.text}"
            tied = [
                f"at {job.recipe.lr:g}, which the held-out images rate the same, {again.points}"
                for job in other.as_good(results)
                if (again := comparison.difference(results.values(job.name), results.values(base.chosen(results).name)))
            ]
            sentences.append(f"{claim} {apart.bears_out(higher=True)} ({'; '.join([apart.points, *tied])}).")
    return tuple(sentences)


ENTRY = Entry("ablation-plain", "Capsule layers and plain convolutions", "argued, not run", __doc__, plan, show)
