"""The report's figures: what was measured seed by seed, beside what the paper says."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, NullLocator

from purecaps.evaluate.style import BLUE, GREEN, INK, VERMILION, styled
from purecaps.experiments.paper.verdict import Published, Sample, learned

ROW = 0.235  # inches


@dataclass(frozen=True)
class Line:
    """A row of `seeds_and_claims`.

    Args:
        label: what stands at its left.
        values: ours, one a seed.
        paper: what the paper says of it.
        quoted: whether that is another system's figure, which the paper quotes.
        first: whether a gap sets it off from the row above.
        ours: whether there is, or will be, something of ours to show.
    """

    label: str
    values: tuple[float, ...] = ()
    paper: Published | None = None
    quoted: bool = False
    first: bool = False
    ours: bool = True


def seeds_and_claims(lines: Sequence[Line], xlabel: str) -> Figure:
    """One row a system: a dot a seed with their mean, and the paper's figure with its spread.

    Seeds that did not learn would squeeze all others together: an arrow at the edge counts them, and the mean is that
    of the others.
    """
    places: list[float] = []
    y = 0.0
    for line in lines:
        y += 1.5 if line.first and places else 1.0
        places.append(y)
    with styled():
        figure = Figure(figsize=(6.2, ROW * (y + 1) + 0.95), layout="constrained")
        axes = figure.add_subplot()
        for y, line in zip(places, lines, strict=True):
            if line.paper is not None:
                colour = INK if line.quoted else VERMILION
                if line.paper.spread is not None:
                    low, high = line.paper.value - line.paper.spread, line.paper.value + line.paper.spread
                    axes.plot([low, high], [y, y], color=colour, alpha=0.45, linewidth=3.5, zorder=1)
                look: dict[str, Any] = {"marker": "D", "markersize": 4.5, "color": colour, "linestyle": "none"}
                axes.plot(line.paper.value, y, **look, zorder=2, fillstyle="none" if line.quoted else "full")
            shown = learned(line.values)
            if shown:
                axes.plot(shown, [y] * len(shown), "o", color=BLUE, alpha=0.4, markersize=4, zorder=3)
                mean = Sample(shown).mean
                axes.plot([mean, mean], [y - 0.36, y + 0.36], color=BLUE, linewidth=2, zorder=4)
            failed = len(line.values) - len(shown)
            missing = not line.values and line.ours and not line.quoted
            if failed or missing:
                axes.annotate(
                    "not run yet" if missing else f"{failed} did not learn \N{RIGHTWARDS ARROW}",
                    (1, y),
                    xycoords=("axes fraction", "data"),
                    ha="right",
                    va="center",
                    color=INK if missing else BLUE,
                    alpha=0.6 if missing else 1.0,
                    fontsize=8,
                )
        axes.set_yticks(places, [line.label for line in lines])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(y + 0.8, places[0] - 0.8)
        axes.set_xlabel(xlabel)
        axes.grid(axis="x")
        axes.spines["left"].set_visible(False)
        handles = _handles(lines)
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handletextpad=0.4)
    return figure


def _handles(lines: Sequence[Line]) -> list[Line2D]:
    handles = []
    if any(line.values for line in lines):
        handles.append(_handle("ours, a seed", BLUE, "o", 4, alpha=0.4))
        handles.append(_handle("their mean", BLUE, "|", 9, markeredgewidth=2))
    if any(line.paper is not None and not line.quoted for line in lines):
        handles.append(_handle("the paper's own", VERMILION, "D", 4.5))
    if any(line.paper is not None and line.quoted for line in lines):
        handles.append(_handle("quoted by the paper", INK, "D", 4.5, fillstyle="none"))
    return handles


def _handle(text: str, colour: str, marker: str, size: float, **look: Any) -> Line2D:
    return Line2D([], [], color=colour, marker=marker, markersize=size, linestyle="none", label=text, **look)


def against_batch(curves: Mapping[str, Mapping[int, float]], *, quoted: Sequence[str], ylabel: str) -> Figure:
    """Curves over batch sizes, on a logarithmic scale, each named at its right end.

    Args:
        curves: for each name, a value a batch size.
        quoted: the names that are the paper's.
        ylabel: what the values are.
    """
    colours = [BLUE, GREEN, INK]
    with styled():
        figure = Figure(figsize=(6.2, 3.4), layout="constrained")
        axes = figure.add_subplot()
        axes.set_yscale("log")
        own = 0
        for name, points in curves.items():
            x = sorted(points)
            is_quoted = name in quoted
            colour = VERMILION if is_quoted else colours[own % len(colours)]
            own += not is_quoted
            axes.plot(
                x,
                [points[batch] for batch in x],
                color=colour,
                marker="D" if is_quoted else "o",
                markersize=4,
                linewidth=1.5,
            )
            axes.annotate(
                name, (x[-1], points[x[-1]]), (6, 0), textcoords="offset points", va="center", color=colour, fontsize=8
            )
        batches = sorted({batch for points in curves.values() for batch in points})
        axes.set_xticks(batches)
        axes.set_xlim(batches[0] - 8, batches[-1] + 0.42 * (batches[-1] - batches[0]))
        axes.set_xlabel("batch size")
        axes.set_title(ylabel)
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
        axes.grid(axis="y")
    return figure


def against_eps(panels: Mapping[str, Mapping[str, Mapping[float, Sample]]], networks: Sequence[str]) -> Figure:
    """Accuracy against the size of a perturbation: a panel an attack, three in a row, a curve a network.

    Args:
        panels: for each attack and network a sample for each size.
        networks: all that there may be, in an order: a network looks the same in every figure, whoever is missing.
    """
    looks = dict(zip(networks, itertools.product(("-", "--"), (VERMILION, BLUE, GREEN, INK)), strict=False))
    names = {name for curves in panels.values() for name in curves}
    with styled():
        columns = min(3, len(panels))
        rows = -(-len(panels) // columns)
        figure = Figure(figsize=(6.6, 0.22 * -(-len(names) // 2) + 2.4 * rows + 0.2), layout="constrained")
        grid = figure.subplots(rows, columns, sharey=True, squeeze=False).flatten()
        for axes in grid[len(panels) :]:
            axes.remove()
        for axes, (title, curves) in zip(grid, panels.items(), strict=False):
            for name in (each for each in networks if each in curves):
                points, (dashes, colour) = curves[name], looks[name]
                sizes = sorted(points)
                axes.errorbar(
                    sizes,
                    [points[size].mean for size in sizes],
                    yerr=[points[size].std or 0.0 for size in sizes],
                    color=colour,
                    linestyle=dashes,
                    linewidth=1.5,
                    marker="o",
                    markersize=3,
                    elinewidth=0.8,
                    label=name,
                )
            axes.set_title(title)
            axes.set_xlabel("eps")
            axes.set_ylim(0, 100)
            axes.set_xlim(left=0)
            axes.grid(axis="y")
        for axes in grid[: len(panels) : columns]:
            axes.set_ylabel("accuracy, %")
        entries = {
            text: line
            for axes in grid[: len(panels)]
            for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        if entries:
            shown = [name for name in networks if name in entries]
            figure.legend([entries[name] for name in shown], shown, loc="outside lower left", ncols=2)
    return figure
