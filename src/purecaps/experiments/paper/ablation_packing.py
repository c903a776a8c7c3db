"""Ablation: capsules as single numbers, vectors, matrices and rank-3 tensors, at exactly equal parameters.

The paper packs capsules into matrices and rank-3 tensors and says that for the same number of parameters folded
capsules might represent more; all its networks have g = 1. Here is pcapsnet2 with six ways to pack, g = 2 and
g = 4 among them, each at two learning rates between which held-out images choose. `models/packing.py` has the networks.

Command: purecaps reproduce ablation-packing
Time: about 8 minutes on one H200
Result: matrices of 4 rows below vectors by 0.1 to 0.5 points for pcapsnet2, with 3 times the multiply-adds; what g > 1
    gives is not known beforehand
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper import comparison
from purecaps.experiments.paper.comparison import MS, Variant, at_scale, paper_network, training
from purecaps.experiments.paper.entry import Entry, Results, Shown
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale
from purecaps.models.packing import packings

MODELS = ("pcapsnet2",)
RATES = (0.01, 0.003)
TEXT = {
    "matrix": "matrices, 1x4xn (the paper's)",
    "scalar": "single numbers, 1x1x1",
    "vector": "vectors, 1x1xn",
    "rows16": "matrices, 1x16xn",
    "g2": "rank 3, 2x4xn",
    "g4": "rank 3, 4x4xn",
}


def variants(scale: Scale) -> list[Variant]:
    rates = RATES if scale.images is None else RATES[:1]
    found = []
    for base in at_scale(MODELS, scale):
        networks = {each.packing: each.model for each in packings(base)}
        for packing, text in TEXT.items():
            jobs = []
            for rate in rates:
                if packing == "matrix":
                    jobs.append(paper_network(base, scale, rate))
                    continue
                name = f"ablation-packing/{base}-{packing}-lr{rate:g}"
                ms = MS["conv2d"] if packing in ("g2", "g4", "rows16") else MS[base]
                jobs.append(training(name, networks[packing], scale, ms=ms, lr=rate))
            found.append(Variant(base, text, tuple(jobs)))
    return found


def plan(scale: Scale) -> Sequence[Job]:
    return comparison.jobs_of(variants(scale))


def show(results: Results) -> Shown:
    listed = variants(results.scale)
    note = (
        "Rows of a capsule share a kernel, so more rows are more work at equal parameters. Networks of equal work and "
        "plain convolutions are in ablation-plain. The initial weights are by one rule (Caffe's), which makes them "
        "smaller against the true fan-in by another factor in each packing: 2 to 6 times for matrices, 1 to 3.5 for "
        "single numbers, 3 to 11 for g = 4. So packing and start are not told apart here, nor are two rates a search."
    )
    picture = comparison.picture(
        listed,
        results,
        "Test errors of networks with six ways to pack capsules and equal parameters, seed by seed.",
        "Each at the learning rate that held-out images chose.",
    )
    tables = (
        comparison.table("Ways to pack a capsule", listed, results, note),
        comparison.rates_table(listed, results),
    )
    return Shown(tables, (picture,), _findings(listed, results))


def _findings(listed: Sequence[Variant], results: Results) -> tuple[str, ...]:
    sentences = []
    for base in (variant for variant in listed if variant.text == TEXT["matrix"]):
        group = {variant.text: variant for variant in listed if variant.group == base.group}
        vector = comparison.error_difference(group[TEXT["vector"]], base, results)
        if vector is not None:
            sentences.append(
                f"{base.group}: that matrices represent more than vectors of as many parameters "
                f"{vector.bears_out(higher=True)} (vectors {vector.points})."
            )
        deeper = {text: comparison.error_difference(group[TEXT[text]], base, results) for text in ("g2", "g4")}
        told = "; ".join(f"g = {text[1:]}: {apart.points}" for text, apart in deeper.items() if apart is not None)
        if told:
            sentences.append(f"{base.group}: rank 3 against one matrix of 4 rows: {told}.")
    return tuple(sentences)


ENTRY = Entry("ablation-packing", "Vectors, matrices, rank-3 tensors", "argued, not run", __doc__, plan, show)
