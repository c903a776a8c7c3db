"""Ablation: no routing coefficients against explicit ones that are learned.

The paper argues that coupling coefficients c_ij need not be computed, since the kernel W_ij can learn c_ij W_ij. Here
they are learned beside the kernel: one for each vote, that is for each kernel position, input and output capsule,
either free or as routing has it, a softmax over the output capsules. Both start at 1, so that every seed starts from
the same function with and without them.

Command: purecaps reproduce ablation-coefficients
Time: about 3 minutes on one H200
Result: less than 0.1 points between them, which five seeds do not tell apart: c_ij W_ij expresses nothing that W_ij
    does not, it only changes the path of the optimiser
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper import comparison
from purecaps.experiments.paper.comparison import MS, Variant, at_scale, paper_network, training
from purecaps.experiments.paper.entry import Entry, Results, Shown
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale

MODELS = ("pcapsnet2", "pcapsnet3")
KINDS = {"free": "learned, free", "softmax": "learned, softmax over parents"}


def variants(scale: Scale) -> list[Variant]:
    found = []
    for model in at_scale(MODELS, scale):
        found.append(Variant(model, "none", (paper_network(model, scale),)))
        for kind, text in KINDS.items():
            job = training(f"ablation-coefficients/{model}-{kind}", model, scale, ms=MS[model], coefficients=kind)
            found.append(Variant(model, text, (job,)))
    return found


def plan(scale: Scale) -> Sequence[Job]:
    return comparison.jobs_of(variants(scale))


def show(results: Results) -> Shown:
    listed = variants(results.scale)
    note = (
        "Coefficients add parameters but no work: they are multiplied into the kernels once. With one output capsule, "
        "as in the hidden layers of pcapsnet2, a softmax over parents is 1 and does nothing."
    )
    picture = comparison.picture(
        listed,
        results,
        "Test errors of two networks without and with learned coupling coefficients, seed by seed.",
        "All at the learning rate of our recipe.",
    )
    return Shown((comparison.table("Coupling coefficients", listed, results, note),), (picture,), _findings(results))


def _findings(results: Results) -> tuple[str, ...]:
    listed = variants(results.scale)
    sentences = []
    for base in (variant for variant in listed if variant.text == "none"):
        others = [variant for variant in listed if variant.group == base.group and variant is not base]
        found = {other.text: comparison.error_difference(other, base, results) for other in others}
        gaps = {text: apart for text, apart in found.items() if apart is not None}
        if not gaps:
            continue
        helped = [text for text, apart in gaps.items() if apart.told_apart and apart.value < 0]
        all_of_them = "; ".join(f"{text}: {apart.points}" for text, apart in gaps.items())
        worse = all(apart.told_apart and apart.value > 0 for apart in gaps.values())
        verdict = (
            f"is contradicted: {' and '.join(helped)} err less"
            if helped
            else "is borne out"
            if worse
            else "is not contradicted by these seeds"
        )
        sentences.append(f"{base.group}: that coefficients are not needed {verdict} ({all_of_them}).")
    return tuple(sentences)


ENTRY = Entry("ablation-coefficients", "Routing-free, or learned coefficients", "argued, not run", __doc__, plan, show)
