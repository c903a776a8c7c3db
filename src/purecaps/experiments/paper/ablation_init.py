"""Ablation: initial weights by the true fan-in, by Caffe's count, and with correlated kernel positions.

The paper finds its trained capsules correlated and concludes that initial weights made for CNNs might not be ideal; it
tries no others. Here each scheme's variance is drawn with correlations of 0 to 0.75 between the positions of a kernel,
which is what the paper's matrices show: see `purecaps.nn.init`.

Command: purecaps reproduce ablation-init
Time: about 3 minutes on one H200
Result: Caffe's smaller weights below the true fan-in by 0.1 to 0.5 points for pcapsnet2; what a correlation gives is
    not known beforehand
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper import comparison
from purecaps.experiments.paper.cells import plain, sample_text
from purecaps.experiments.paper.comparison import MS, Variant, at_scale, paper_network, training
from purecaps.experiments.paper.entry import Entry, Results, Row, Shown, Table
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale

MODELS = ("pcapsnet2",)
SCHEMES = {"caffe": "Caffe's count", "msra": "true fan-in"}
CORRELATIONS = (0.0, 0.25, 0.5, 0.75)
EARLY = 2000  # steps; one tenth of the run


def variants(scale: Scale) -> list[Variant]:
    found = []
    for model in at_scale(MODELS, scale):
        for scheme, text in SCHEMES.items():
            for correlation in CORRELATIONS:
                if scheme == "caffe" and not correlation:
                    job = paper_network(model, scale)
                else:
                    name = f"ablation-init/{model}-{scheme}-{correlation:g}"
                    job = training(name, model, scale, ms=MS[model], init=scheme, init_correlation=correlation)
                found.append(Variant(model, f"{text}, correlation {correlation:g}", (job,)))
    return found


def plan(scale: Scale) -> Sequence[Job]:
    return comparison.jobs_of(variants(scale))


def show(results: Results) -> Shown:
    listed = variants(results.scale)
    picture = comparison.picture(
        listed,
        results,
        "Test errors by initial weights, seed by seed: two variances, each with four correlations.",
        "All at the learning rate of our recipe, which was chosen with Caffe's count and no correlation.",
    )
    tables = (comparison.table("Initial weights", listed, results), _early_table(listed, results))
    return Shown(tables, (picture,), _findings(listed, results))


def early(results: Results, name: str) -> tuple[float, ...]:
    """Error on held-out images after a tenth of the run, one a seed; at a tiny scale after all of it."""
    record = results.get(name)
    if record is None:
        return ()
    found = []
    for run in record["runs"]:
        steps, errors = run["curves"]["step"], run["curves"]["val_error"]
        found.append(errors[steps.index(EARLY) if EARLY in steps else -1])
    return tuple(found)


def _early_table(listed: Sequence[Variant], results: Results) -> Table:
    rows = tuple(
        Row(plain(variant.group, variant.text, sample_text(early(results, variant.jobs[0].name)))) for variant in listed
    )
    columns = ("network", "variant", f"held out after {EARLY:,} steps, %")
    note = "Good initial weights should show early, even where training makes up for poor ones later."
    return Table("Early on", columns, rows, columns[2:], note)


def _findings(listed: Sequence[Variant], results: Results) -> tuple[str, ...]:
    sentences = []
    for model in dict.fromkeys(variant.group for variant in listed):
        for text in SCHEMES.values():
            group = [each for each in listed if each.group == model and each.text.startswith(text)]
            base, *correlated = group
            found = {each: comparison.error_difference(each, base, results) for each in correlated}
            gaps = {each: apart for each, apart in found.items() if apart is not None}
            if not gaps:
                continue
            helped = [each.text for each, apart in gaps.items() if apart.told_apart and apart.value < 0]
            says = "helps" if helped else "is not seen to help"
            told = "; ".join(f"{each.text.rsplit(', ', 1)[1]}: {apart.points}" for each, apart in gaps.items())
            sentences.append(f"{model}, {text}: a correlated start {says} ({told}).")
    return tuple(sentences)


ENTRY = Entry("ablation-init", "Initial weights", "suggested, not run", __doc__, plan, show)
