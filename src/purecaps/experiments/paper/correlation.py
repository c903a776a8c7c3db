"""Figure: do the capsules of a kernel correlate more than the filters of a CNN?

The paper correlates kernel positions: 9x9 matrices from pcapsnet2's first two layers, of 16 and 32 numbers a position,
25x25 from the CNN's, of 256 and 65,536. It finds the CNN's correlations lower. But 16 independent numbers correlate by
0.21 on average, sign aside, and 65,536 by 0.003, so the comparison is repeated with 16 of the CNN's filters at a time,
and with a CNN of as many parameters as pcapsnet2.

Command: purecaps reproduce correlation
Time: about 4 minutes on one H200
Result: mean absolute correlations of pcapsnet2 about 0.27 and 0.19 where chance gives 0.21 and 0.14, as in the packaged
    weights; of the CNN about 0.05 and 0.1, but 0.21 to 0.25 with 16 filters at a time: most of the difference is the
    number of filters
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from purecaps.evaluate.correlation import Panel, matrices
from purecaps.experiments.paper import inspected
from purecaps.experiments.paper.cells import NONE, NOT_RUN, plain, sample_text
from purecaps.experiments.paper.comparison import difference
from purecaps.experiments.paper.entry import Entry, Picture, Results, Row, Shown, Table
from purecaps.experiments.paper.inspected import BASELINE, BEST, FEW, LAYERS, PAPER, RUNS, SMALL, Run, layer_values
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.verdict import Sample

COLUMNS = (
    "network",
    "layer",
    "matrix",
    "numbers a position",
    "mean abs. r",
    "by chance",
    "mean r",
    "r² beyond chance",
    f"mean abs. r of {FEW}",
)
NOTE = (
    "r: Pearson's correlation of two kernel positions, over all pairs of a layer; mean ± standard deviation over "
    "seeds. by chance: mean absolute r of independent weights. r² beyond chance: mean r² less its expectation for "
    "independent weights, comparable whatever the number of filters. The last column takes "
    f"{FEW} filters of the layer at a time, chosen at random 500 times; chance gives 0.21. Layers of fewer have none."
)


def plan(scale: Scale) -> Sequence[Job]:
    return [inspected.job_of(run, scale) for run in RUNS]


def show(results: Results) -> Shown:
    rows = [row for run in RUNS for row in _rows(results, run)]
    table = Table("Correlation between kernel positions", COLUMNS, tuple(rows), COLUMNS[3:], NOTE)
    found = [_panels(results, run) for run in (BASELINE, PAPER, SMALL)]
    panels = [panel for layer in (0, 1) for of_run in found for panel in of_run[layer : layer + 1]]
    picture = Picture(
        "matrices",
        matrices(panels, columns=3),
        "Correlation matrices of the first two layers of the CNN of 35.4M parameters, of pcapsnet2 and of a small CNN.",
        "First seed of each, pcapsnet2 by the paper's recipe. The paper's figure has the first two columns.",
    )
    return Shown((table,), (picture,) if panels else (), _findings(results))


def _rows(results: Results, run: Run) -> list[Row]:
    layers = inspected.of_seeds(results, run, "layers")
    if not layers:
        return [Row(plain(run.text, *(NONE for _ in COLUMNS[2:-1]), NOT_RUN, NONE))]
    rows = []
    for layer, about in enumerate(layers[0][:LAYERS]):
        few = layer_values(results, run, layer, "mean_abs_of_few")
        rows.append(
            Row(
                plain(
                    run.text,
                    str(layer + 1),
                    f"{about['positions']}x{about['positions']}",
                    f"{about['filters']:,}",
                    sample_text(layer_values(results, run, layer, "mean_abs"), 3),
                    f"{about['by_chance']:.3f}",
                    Sample(layer_values(results, run, layer, "mean")).text(3),
                    Sample(layer_values(results, run, layer, "squared_beyond_chance")).text(3),
                    Sample(few).text(3) if few else NONE,
                )
            )
        )
    return rows


def _panels(results: Results, run: Run) -> list[Panel]:
    found = inspected.of_seeds(results, run, "matrices")
    layers = inspected.of_seeds(results, run, "layers")
    if not found:
        return []
    panels = []
    for layer, matrix in enumerate(found[0][:2]):
        about = layers[0][layer]
        size = f"{about['positions']}x{about['filters']:,}"
        note = f"{size}\nmean |r| {about['mean_abs']:.2f}, by chance {about['by_chance']:.3f}"
        panels.append(Panel(f"{run.short}, layer {layer + 1}", note, torch.tensor(matrix)))
    return panels


def _findings(results: Results) -> tuple[str, ...]:
    of_paper = (_finding(results, run, layer) for layer in (0, 1) for run in (PAPER, BEST))
    at_equal_size = (_finding_at_equal_size(results, run) for run in (PAPER, BEST))
    return tuple(sentence for sentence in (*of_paper, *at_equal_size) if sentence is not None)


def _finding_at_equal_size(results: Results, run: Run) -> str | None:
    """The same kernels, depth and number of parameters: what is left is capsules or filters."""
    texts = []
    for layer in range(LAYERS):
        ours, theirs = (layer_values(results, each, layer, "squared_beyond_chance") for each in (run, SMALL))
        apart = difference(ours, theirs)
        if apart is not None:
            told = "" if apart.told_apart else ", not told apart"
            texts.append(f"layer {layer + 1} {Sample(ours).text(3)} against {Sample(theirs).text(3)}{told}")
    return (
        f"At equal size, r² beyond chance, {run.text} against the {SMALL.text}: {'; '.join(texts)}." if texts else None
    )


def _finding(results: Results, run: Run, layer: int) -> str | None:
    """What the paper's comparison gives, and what is left of it at equal numbers of filters."""
    fields = ("mean_abs", "by_chance", "mean_abs_of_few")
    ours, theirs = ([layer_values(results, each, layer, field) for field in fields] for each in (run, BASELINE))
    apart = difference(ours[2], theirs[2])
    if apart is None:
        return None
    means, others = ([Sample(values).mean for values in each] for each in (ours, theirs))
    says = "are not told apart" if not apart.told_apart else "stay higher" if apart.value > 0 else "are the lower ones"
    return (
        f"Layer {layer + 1}, {run.text}: {means[0]:.3f} against the CNN's {others[0]:.3f}, where chance alone gives "
        f"{means[1]:.3f} and {others[1]:.3f}. With {FEW} filters at a time capsules {says}: {means[2]:.3f} against "
        f"{others[2]:.3f}."
    )


ENTRY = Entry(
    "correlation", "Do capsules correlate more than filters?", "Figure: correlation matrices", __doc__, plan, show
)
