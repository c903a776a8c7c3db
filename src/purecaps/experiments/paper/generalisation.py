"""Figure: the generalisation gap of pcapsnet2 and of the CNN.

The paper draws training and test loss over time and finds the gap of pcapsnet2 smaller at the end. Here the loss is
taken on 5,000 images that are trained on and on 5,000 that are held out, both untransformed and in eval mode; the test
set is read once, at the end. By our recipe both losses are cross-entropies in nats. By the paper's pcapsnet2 has the
margin loss, whose numbers cannot be set beside a cross-entropy: there only the gap in error can be compared.

Command: purecaps reproduce generalisation
Time: about 4 minutes on one H200
Result: at the end pcapsnet2 errs by at most 0.2 points more on held-out images, the CNN of 35.4M by about 0.5, with no
    training error left; a small network has a small gap because it cannot fit, capsules or not
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.evaluate.generalisation import GapCurves, gap_picture
from purecaps.experiments.paper import inspected
from purecaps.experiments.paper.cells import mean_text, plain, sample_text
from purecaps.experiments.paper.comparison import difference
from purecaps.experiments.paper.entry import Entry, Picture, Results, Row, Shown, Table
from purecaps.experiments.paper.inspected import BASELINE, BEST, PAPER, RUNS, SMALL, Run
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.verdict import Sample

COLUMNS = (
    "network",
    "loss",
    "loss trained on",
    "loss held out",
    "gap in loss",
    "gap in error, points",
    "test error, %",
)
LOSSES = {"margin": "margin", "cross_entropy": "cross-entropy"}
NOTE = (
    "At the end, mean ± standard deviation over seeds, on 5,000 images that were trained on and 5,000 that were held "
    "out, untransformed. gap: held out less trained on. Losses of different kinds cannot be compared."
)


def plan(scale: Scale) -> Sequence[Job]:
    return [inspected.job_of(run, scale) for run in RUNS]


def curves(results: Results, run: Run) -> GapCurves | None:
    found = inspected.of_seeds(results, run, "curves")
    return GapCurves(found) if found else None


def show(results: Results) -> Shown:
    table = Table("The gap at the end", COLUMNS, tuple(_row(results, run) for run in RUNS), COLUMNS[2:], NOTE)
    drawn = {run.text: found for run in (BEST, BASELINE, SMALL) if (found := curves(results, run)) is not None}
    picture = Picture(
        "gap",
        gap_picture(drawn),
        "Loss and error over time on images that were trained on and on held-out ones, for pcapsnet2 and two CNNs.",
        "Means over seeds. Below, the gap: held out less trained on. The three are trained for different numbers of "
        "steps. By the paper's recipe pcapsnet2 has the margin loss, which is in the table and cannot be drawn here.",
    )
    return Shown((table,), (picture,) if drawn else (), _findings(results))


def _row(results: Results, run: Run) -> Row:
    found = curves(results, run)
    ends = {name: tuple(each[name][-1] for each in found.seeds) if found else () for name in ("train_loss", "val_loss")}
    gaps = {measure: found.final(measure) if found else [] for measure in ("loss", "error")}
    return Row(
        plain(
            run.text,
            LOSSES[run.recipe.loss],
            mean_text(ends["train_loss"], 4),
            mean_text(ends["val_loss"], 4),
            sample_text(gaps["loss"], 4),
            sample_text(gaps["error"]),
            mean_text(results.values(inspected.name_of(run))),
        )
    )


def _findings(results: Results) -> tuple[str, ...]:
    sentences = []
    baseline, small = curves(results, BASELINE), curves(results, SMALL)
    for run in (PAPER, BEST):
        ours = curves(results, run)
        for other, name in ((baseline, BASELINE.text), (small, SMALL.text)):
            if ours is None or other is None:
                continue
            for measure, digits in (("loss", 4), ("error", 2)):
                if measure == "loss" and run.recipe.loss != BASELINE.recipe.loss:
                    continue
                pair = ours.final(measure), other.final(measure)
                apart = difference(*pair)
                assert apart is not None
                says = "smaller" if apart.value < 0 else "larger"
                told = "" if apart.told_apart else ", not told apart at 95 %"
                one, two = (f"{Sample(tuple(values)).mean:.{digits}f}" for values in pair)
                sentences.append(
                    f"{run.text}: the gap in {measure} is {says} than that of the {name} ({one} against {two}{told})."
                )
    return tuple(sentences)


ENTRY = Entry("generalisation", "Generalisation gap", "Figure: generalization gap", __doc__, plan, show)
