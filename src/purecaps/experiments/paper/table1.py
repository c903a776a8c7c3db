"""Table 1: P-CapsNets against CapsNets with routing procedures, on MNIST.

pcapsnet0 and pcapsnet3 by three recipes: the paper's appendix, what its authors' code does, and ours; ten seeds each,
side by side. Other systems carry the figures that the paper quotes.

Command: purecaps reproduce table1
Time: about 5 minutes on one H200
Result: pcapsnet0 0.34 % by the paper's recipe and 0.43 +- 0.08 % by ours, pcapsnet3 0.47 % by both, as prototypes
    with one to three seeds had it; what the authors' code gives is not known beforehand
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper import mnist
from purecaps.experiments.paper.entry import Entry, Picture, Results, Shown, Table
from purecaps.experiments.paper.figures import Line, seeds_and_claims
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.mnist import System
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.verdict import Published

MODELS = ("pcapsnet0", "pcapsnet3")
SYSTEMS = (
    System("DCNet++, dynamic routing", "13.4M", Published(0.29, None, "Table 1")),
    System("DCNet, dynamic routing", "11.8M", Published(0.25, None, "Table 1")),
    System("CapsNets, dynamic (1)", "6.8M", Published(0.34, 0.03, "Table 1")),
    System("CapsNets, dynamic (3)", "6.8M", Published(0.35, 0.04, "Table 1")),
    System("Atten-Caps, attention", "5.3M", Published(0.64, None, "Table 1")),
    System("CapsNets, EM (3)", "320K", Published(0.44, None, "Table 1")),
)


def plan(scale: Scale) -> Sequence[Job]:
    return mnist.jobs(MODELS, scale)


def show(results: Results) -> Shown:
    rows = [mnist.system_row(system) for system in SYSTEMS]
    lines = [Line(system.name, paper=system.error, quoted=True) for system in SYSTEMS]
    for model in MODELS:
        rows += mnist.network_rows(model, results)
        lines += mnist.network_lines(model, results)
    table = Table("Error on MNIST", mnist.COLUMNS, tuple(rows), mnist.NUMERIC, mnist.NOTE)
    picture = Picture(
        "errors",
        seeds_and_claims(lines, "test error on MNIST, %"),
        "Test errors of pcapsnet0 and pcapsnet3 by three recipes, seed by seed, beside the paper's figures.",
        "A dot a seed; diamonds are the paper's figures, with its spread where it gives one.",
    )
    return Shown((table,), (picture,), mnist.findings(MODELS, results))


ENTRY = Entry("table1", "P-CapsNets and CapsNets with routing, on MNIST", "Table 1", __doc__, plan, show)
