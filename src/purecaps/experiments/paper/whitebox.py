"""The white-box figure: universal perturbations by the paper's generator, and checks on what they show.

The paper attacks its CNN baseline and pcapsnet2 by perturbations that a generative network learns from the attacked
network's own gradients, to make class y + 1 of class y, and gives a figure without numbers. Beyond it: the same
generator with any wrong class for its aim; FGSM and PGD, since a universal perturbation is weak and masked gradients
would flatter a network; random signs, which any attack should beat; a CNN as small as pcapsnet2; and P-CapsNets trained
against perturbations of up to 0.1, which PGD also attacks from five starts. Three seeds each, the first 1,000 test
images.

Command: purecaps reproduce whitebox
Time: about 60 minutes on one H200
Result: pcapsnet2 falls faster than the baseline, as in the paper; PGD leaves neither much from 0.1 on; adversarial
    training keeps most of the accuracy at 0.1
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper import attacking, targets
from purecaps.experiments.paper.attacking import accuracies
from purecaps.experiments.paper.cells import NOT_RUN, plain
from purecaps.experiments.paper.entry import Entry, Picture, Results, Row, Shown, Table
from purecaps.experiments.paper.figures import against_eps
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import FULL, Scale
from purecaps.experiments.paper.targets import EPS
from purecaps.experiments.paper.verdict import Sample

FEW = 1000
USUAL = ("uap", "uap-any", "fgsm", "pgd", "noise")
ON_HARDENED = (*USUAL, "pgd-restarts")
METHODS = {method: attacking.METHODS[method].text for method in ON_HARDENED}
TEXT = {name: target.text for name, target in {**targets.targets(FULL), **targets.hardened(FULL)}.items()}


def name_of(method: str, target: str) -> str:
    return f"whitebox/{method}-{target}"


def plan(scale: Scale) -> Sequence[Job]:
    hardened = targets.hardened(scale)
    attacks = [
        targets.attack_of(name_of(method, name), target.job, None, method, (FEW,), scale)
        for name, target in {**targets.targets(scale), **hardened}.items()
        for method in _methods(name)
    ]
    return [targets.baseline(scale), *(target.job for target in hardened.values()), targets.cnn_small(scale), *attacks]


def _methods(target: str) -> tuple[str, ...]:
    return ON_HARDENED if target.endswith("-hardened") else USUAL


def show(results: Results) -> Shown:
    found = {method: {name: _curve(method, name, results) for name in TEXT} for method in METHODS}
    columns = ("network", "attack", "clean, %", *(f"{eps:g}" for eps in EPS))
    rows = []
    for name, text in TEXT.items():
        for method in _methods(name):
            attack, curve = METHODS[method], found[method][name]
            values = [curve[eps].text(1) for eps in (0.0, *EPS)] if curve else [NOT_RUN] * (1 + len(EPS))
            rows.append(Row(plain(text, attack, *values)))
    note = (
        "Accuracy in percent on the first 1,000 test images, mean ± standard deviation over seeds; columns are eps, "
        "the most that a pixel of [0, 1] changes. With 1,000 images a figure of 50 % is good to ± 3 points, whatever "
        f"the seeds. {targets.AGAIN}"
    )
    table = Table("Accuracy under white-box attack", columns, tuple(rows), columns[2:], note)
    panels = {
        METHODS[method]: {TEXT[name]: curve for name, curve in found[method].items() if curve}
        for method in USUAL
        if any(found[method].values())
    }
    if not panels:
        return Shown((table,), (), ())
    picture = Picture(
        "accuracy",
        against_eps(panels, list(TEXT.values())),
        "Accuracy against epsilon under white-box attacks, a panel an attack and a curve a network.",
        "Universal perturbations towards class y + 1 are the paper's figure, the others are checks. Bars are standard "
        "deviations over seeds.",
    )
    return Shown((table,), (picture,), _findings(found))


def _curve(method: str, target: str, results: Results) -> dict[float, Sample]:
    record = results.get(name_of(method, target))
    return {} if record is None else {eps: Sample(accuracies(record, FEW, eps)) for eps in (0.0, *EPS)}


def _findings(found: dict[str, dict[str, dict[float, Sample]]]) -> tuple[str, ...]:
    sentences = []
    own, other = found["uap"]["pcapsnet2-paper"], found["uap"]["baseline"]
    if own and other:
        lower = [eps for eps in EPS if own[eps].mean < other[eps].mean]
        sentences.append(
            "The paper's claim, that pcapsnet2 falls faster than the CNN baseline under universal perturbations: it is "
            f"the less accurate at {len(lower)} of {len(EPS)} sizes."
        )
    weak = [
        f"{TEXT[name]} at {', '.join(f'{eps:g}' for eps in sizes)}"
        for name in TEXT
        if (learned := found["uap"][name])
        and (random := found["noise"][name])
        and (sizes := [eps for eps in EPS if learned[eps].mean >= random[eps].mean])
    ]
    if any(found["uap"][name] and found["noise"][name] for name in TEXT):
        sentences.append(
            "The paper's attack leaves as much as random signs do, or more, to "
            f"{'; '.join(weak)}: there it has found nothing, and its numbers say little of a network."
            if weak
            else "The paper's attack leaves less than random signs at every size."
        )
    masked = [
        TEXT[name]
        for name in TEXT
        if (one := found["fgsm"][name]) and (many := found["pgd"][name]) and many[0.1].mean > one[0.1].mean
    ]
    if all(found[method][name] for method in ("fgsm", "pgd") for name in TEXT):
        sentences.append(
            f"Masked gradients: at 0.1, PGD leaves more than FGSM to {', '.join(masked)}: look closer."
            if masked
            else "No sign of masked gradients: at 0.1, PGD leaves less than FGSM to every network."
        )
    for method, eps in (("fgsm", 0.1), ("pgd", 0.05)):
        own, other = found[method]["pcapsnet2-best"], found[method]["cnn-small"]
        if own and other:
            sentences.append(
                f"At equal size, {METHODS[method]} at {eps:g}: pcapsnet2 keeps {own[eps].text(1)} %, the plain CNN of "
                f"as many parameters {other[eps].text(1)} %."
            )
    usual, hard = found["pgd"]["pcapsnet2-best"], found["pgd"]["pcapsnet2-hardened"]
    if usual and hard:
        sentences.append(
            f"Adversarial training gives pcapsnet2 {hard[0.1].mean - usual[0.1].mean:+.1f} points at 0.1 under PGD, "
            f"and {hard[0.0].mean - usual[0.0].mean:+.1f} on clean images."
        )
    return tuple(sentences)


ENTRY = Entry("whitebox", "White-box attacks", "the white-box figure", __doc__, plan, show)
