"""Table 2: P-CapsNets against deep compression, on MNIST.

pcapsnet3 (shared with table 1), pcapsnet2 and pcapsnet1 by three recipes, ten seeds each, and one control: pcapsnet2 by
the paper's recipe in full FP32, since everything else is trained in TF32 on a GPU.

Command: purecaps reproduce table2
Time: about 6 minutes on one H200
Result: pcapsnet2 0.73 +- 0.12 % and pcapsnet1 0.86 +- 0.04 % by our recipe (three seeds), below the paper's 0.85 and
    1.05; by the paper's recipe pcapsnet2 underfits, at 1.46 % in a prototype
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from purecaps.experiments.paper import mnist
from purecaps.experiments.paper.cells import error_text, fit_note, mean_text, plain, quoted_row, verdict_cell
from purecaps.experiments.paper.entry import Entry, Picture, Results, Row, Shown, Table
from purecaps.experiments.paper.figures import Line, seeds_and_claims
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.verdict import Published

MODELS = ("pcapsnet3", "pcapsnet2", "pcapsnet1")
CONTROL = "table2/pcapsnet2-paper-fp32"


@dataclass(frozen=True)
class System:
    """A compressed network, as the paper quotes it; it is not run here."""

    name: str
    parameters: str
    error: Published

    def row(self) -> Row:
        return quoted_row(self.name, self.parameters, "–", self.error.text(), "–", "–")


SYSTEMS = (
    System("KFC-Combined", "52.5K", Published(0.57, None, "Table 2")),
    System("Adaptive Fastfood 2048", "52.1K", Published(0.73, None, "Table 2")),
    System("Adaptive Fastfood 1024", "38.8K", Published(0.73, None, "Table 2")),
    System("KFC-II", "27.7K", Published(0.76, None, "Table 2")),
    System("ProdSumNet", "3.6K", Published(1.55, None, "Table 2")),
)


def plan(scale: Scale) -> Sequence[Job]:
    like = mnist.job_of("pcapsnet2", "paper", scale)
    control = dataclasses.replace(like, name=CONTROL, recipe=like.recipe.replace(precision="fp32"))
    return [*mnist.jobs(MODELS, scale), control]


def show(results: Results) -> Shown:
    rows = [system.row() for system in SYSTEMS]
    lines = [Line(system.name, paper=system.error, quoted=True) for system in SYSTEMS]
    for model in MODELS:
        rows += mnist.network_rows(model, results)
        lines += mnist.network_lines(model, results)
    paper, errors = mnist.PAPER["pcapsnet2"], results.values(CONTROL)
    text = (
        "pcapsnet2",
        f"{mnist.PARAMETERS['pcapsnet2']:,}",
        "the paper's, in FP32",
        paper.text(),
        error_text(errors),
    )
    control = (*plain(*text, mean_text(results.values(CONTROL, "train_error"))),)
    rows.append(Row((*control, verdict_cell(paper, errors, fit_note(results, CONTROL, paper)))))
    lines.append(Line("pcapsnet2, the paper's, FP32", errors, paper, first=True))
    note = (
        f"{mnist.NOTE} ProdSumNet is called ProfSumNet in the paper's table, whose text gives 98.44 %, that is 1.56, "
        "as the ProdSumNet paper does. The last row is trained in FP32; what a GPU trained of the others is in TF32."
    )
    table = Table("Error on MNIST", mnist.COLUMNS, tuple(rows), mnist.NUMERIC, note)
    picture = Picture(
        "errors",
        seeds_and_claims(lines, "test error on MNIST, %"),
        "Test errors of pcapsnet1, 2 and 3 by three recipes, seed by seed, beside the figures of compression systems.",
        "A dot a seed; diamonds are the paper's figures, with its spread where it gives one.",
    )
    return Shown((table,), (picture,), mnist.findings(MODELS, results))


ENTRY = Entry("table2", "P-CapsNets and deep compression, on MNIST", "Table 2", __doc__, plan, show)
