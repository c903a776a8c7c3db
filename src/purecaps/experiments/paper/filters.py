"""Figure: the filters of each layer of pcapsnet2, reshaped to one row a kernel position.

The paper shows its first four layers as matrices of 9x16, 9x32 and so on; here are all five, of the first seed by the
paper's recipe and by ours. The table says how far the weights have gone from where they started.

Command: purecaps reproduce filters
Time: about 1 minutes on one H200
Result: five matrices of 9x16, 9x32, 9x32, 9x32 and 9x320, their weights 1 to 3 times as large as the initial ones
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from purecaps.evaluate.filters import filters as draw_filters
from purecaps.experiments.paper import inspected
from purecaps.experiments.paper.cells import plain, sample_text
from purecaps.experiments.paper.entry import Entry, Picture, Results, Row, Shown, Table
from purecaps.experiments.paper.inspected import BEST, PAPER, Run
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale
from purecaps.models.pcapsnet import PCapsNet
from purecaps.models.registry import build_model
from purecaps.nn.init import fan
from purecaps.ops.validation import times

COLUMNS = (
    "network",
    "layer",
    "kernel",
    "reshaped",
    "standard deviation at first",
    "standard deviation after",
    "largest",
)


def plan(scale: Scale) -> Sequence[Job]:
    return [inspected.job_of(run, scale) for run in (PAPER, BEST)]


def show(results: Results) -> Shown:
    rows = [row for run in (PAPER, BEST) for row in _rows(results, run)]
    note = (
        "Mean ± standard deviation over seeds. By the paper's recipe weights start by the true fan-in, by ours with "
        "Caffe's count."
    )
    table = Table("Weights of pcapsnet2", COLUMNS, tuple(rows), COLUMNS[4:], note)
    pictures = [picture for run in (PAPER, BEST) if (picture := _picture(results, run)) is not None]
    return Shown((table,), tuple(pictures))


def _rows(results: Results, run: Run) -> list[Row]:
    with torch.device("meta"):
        network = build_model(run.model, None, 10, {})
    assert isinstance(network, PCapsNet)
    rows = []
    for layer, block in enumerate(network.capsule_blocks()):
        shape = block.conv.weight.shape
        first = math.sqrt(2 / fan(shape, run.recipe.init or "msra"))
        rows.append(
            Row(
                plain(
                    run.text,
                    str(layer + 1),
                    f"{times(shape[:4])}x({times(shape[4:])})",
                    f"{shape[:2].numel()}x{shape[2:].numel()}",
                    f"{first:.3f}",
                    sample_text(inspected.layer_values(results, run, layer, "std"), 3),
                    sample_text(inspected.layer_values(results, run, layer, "largest")),
                )
            )
        )
    return rows


def _picture(results: Results, run: Run) -> Picture | None:
    weights = inspected.stored_kernels(results, run)
    if not weights:
        return None
    return Picture(
        run.leaf,
        draw_filters(weights),
        f"The weights of the five layers of {run.text}, as matrices of nine rows, one a kernel position.",
        f"{run.text}, first seed. Vermilion is positive, blue negative. The paper's figure shows layers 1 to 4 of a "
        "training of its own: the arrangement can be compared, not the weights.",
    )


ENTRY = Entry("filters", "Filters of pcapsnet2", "Figure: visualization of filters", __doc__, plan, show)
