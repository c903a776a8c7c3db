"""The zoo's picture: error against parameters and against training time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from purecaps.evaluate.style import BLUE, GREEN, INK, VERMILION, styled
from purecaps.experiments.paper.labels import Named, name_points

PURE, ROUTED, PLAIN = "P-CapsNets", "CapsNets with routing", "plain CNNs"
SUBS: tuple[tuple[float, ...], ...] = ((1,), (1, 2, 5), (1, 1.5, 2, 3, 5, 7))
COLOURS = {PURE: VERMILION, ROUTED: BLUE, PLAIN: GREEN}


@dataclass(frozen=True)
class Point:
    """A network of the picture.

    Args:
        label: its name.
        family: what it is coloured as.
        parameters: how many it takes to classify an image.
        error: ours, the mean over seeds, in percent; None where it was not run.
        seconds: that a training of ours took.
        published: parameters and error as published; None where one of them was not.
    """

    label: str
    family: str
    parameters: int
    error: float | None = None
    seconds: float | None = None
    published: tuple[float, float] | None = None


def trade_offs(panels: Mapping[str, Sequence[Point]]) -> Figure:
    """Two panels a data set, in one row: ours are filled points, published figures hollow, a line joins the two.

    Args:
        panels: for each data set's title its networks.
    """
    with styled():
        figure = Figure(figsize=(8.6, 3.9 * len(panels) + 0.4), layout="constrained")
        grid = figure.subplots(len(panels), 2, squeeze=False, sharey="row")
        for (left, right), (title, points) in zip(grid, panels.items(), strict=True):
            errors = [each.error for each in points if each.error is not None]
            errors += [each.published[1] for each in points if each.published is not None]
            _axes(left, f"{title}: error against parameters", "parameters", errors)
            _axes(right, f"{title}: error against training time", "training time of one network, s", errors)
            left.set_ylabel("test error, %")
            right.tick_params(labelleft=False)
            _limits(left, [x for each in points for x in _sizes(each)])
            _limits(right, [each.seconds for each in points if each.seconds is not None])
            for each in points:
                _draw(left, right, each)
        handles = [_handle(name, colour) for name, colour in COLOURS.items()]
        handles += [_handle("ours", INK), _handle("published", INK, fillstyle="none")]
        figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), handletextpad=0.3)
        # Names are placed by where things are on the page, so that nothing may move any more.
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        for (left, right), points in zip(grid, panels.values(), strict=True):
            _name_sizes(left, points)
            _name_times(right, points)
    return figure


def _sizes(point: Point) -> list[float]:
    ours = [] if point.error is None else [float(point.parameters)]
    return ours if point.published is None else [*ours, point.published[0]]


def _axes(axes: Axes, title: str, xlabel: str, errors: Sequence[float]) -> None:
    axes.set_title(title)
    axes.set_xlabel(xlabel)
    axes.set_xscale("log")
    axes.set_yscale("log")
    if errors:
        axes.set_ylim(min(errors) / 1.18, max(errors) * 1.18)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, position: _short(value)))
    axes.grid()


def _limits(axes: Axes, values: Sequence[float]) -> None:
    """Room at both sides, where names go; whole powers of ten would leave half of a panel empty."""
    if not values:
        axes.set_xlim(1, 1000)
        axes.text(0.5, 0.5, "nothing recorded yet", transform=axes.transAxes, ha="center", va="center")
        return
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.12 * (high - low), 0.25)
    axes.set_xlim(10 ** (low - room), 10 ** (high + room))
    axes.xaxis.set_major_locator(LogLocator(subs=_ticked(low - room, high + room)))


def _ticked(low: float, high: float) -> tuple[float, ...]:
    """What of each power of ten is ticked between two of them: as little as gives two ticks, which make a scale."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    for subs in SUBS[:-1]:
        if sum(low <= power + math.log10(each) <= high for power in powers for each in subs) > 1:
            return subs
    return SUBS[-1]


def _draw(left: Axes, right: Axes, point: Point) -> None:
    look: dict[str, Any] = {
        "color": COLOURS[point.family], "marker": "o", "markersize": 5, "linestyle": "none", "zorder": 3,
    }  # fmt: skip
    if point.published is not None:
        left.plot(*point.published, **{**look, "fillstyle": "none", "zorder": 2})
    if point.error is None:
        return
    left.plot(point.parameters, point.error, **look)
    if point.published is not None:
        ends = zip((point.parameters, point.error), point.published, strict=True)
        left.plot(*ends, color=look["color"], alpha=0.45, linewidth=0.8, zorder=1)
    if point.seconds is not None:
        right.plot(point.seconds, point.error, **look)


def _name_sizes(axes: Axes, points: Sequence[Point]) -> None:
    named, lines = [], []
    for each in points:
        ours = None if each.error is None else (float(each.parameters), each.error)
        at = ours or each.published
        if at is not None:
            named.append(Named(*at, each.label, COLOURS[each.family]))
        if ours is not None and each.published is not None:
            lines.append((ours, each.published))
    name_points(axes, named, others=[published for _, published in lines], lines=lines)


def _name_times(axes: Axes, points: Sequence[Point]) -> None:
    named = [
        Named(each.seconds, each.error, each.label, COLOURS[each.family])
        for each in points
        if each.seconds is not None and each.error is not None
    ]
    name_points(axes, named)


def _short(value: float) -> str:
    for unit, name in ((1e6, "M"), (1e3, "K")):
        if value >= unit:
            return f"{value / unit:g}{name}"
    return f"{value:g}"


def _handle(text: str, colour: str, **look: Any) -> Line2D:
    return Line2D([], [], color=colour, marker="o", markersize=5, linestyle="none", label=text, **look)
