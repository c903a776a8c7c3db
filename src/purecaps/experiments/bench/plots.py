"""Pictures of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator

from purecaps.errors import ConfigError
from purecaps.evaluate.style import BLUE, GREEN, INK, VERMILION, styled
from purecaps.experiments.bench.growth import AXES, Growth
from purecaps.experiments.bench.record import Row

# Inches: three panels are as wide as a page of text.
PANEL, NARROW_PANEL, LEAST_WIDTH = 2.7, 2.1, 4.4
# Of the Okabe-Ito palette; what this library adds is vermilion.
COLOURS = {
    "naive": "#8c8c8c",
    "conv": BLUE,
    "compile": "#56b4e9",
    "max-autotune": GREEN,
    "cpu": VERMILION,
    "triton": VERMILION,
    "compile_inference": "#7a2e00",
    "one kernel": "#e69f00",
    "cnn": "#cc79a7",
}
OTHER = "#b8a000"
FLOOR, ARITHMETIC = "floor", "as the arithmetic grows"
DOTS, DASHES = (0, (1, 1.5)), (0, (3.5, 1.5))


def plot(rows: Sequence[Row]) -> Figure:
    """Images a second, a panel for each model and mode: lines against batch sizes, dots where there is but one.

    Args:
        rows: those without a time are left out.
    """
    rows = [row for row in rows if row.images_per_s is not None]
    if not rows:
        raise ConfigError("rows: expected at least one measurement to draw, got none")
    models, modes = ([*dict.fromkeys(names)] for names in zip(*((row.model, row.mode) for row in rows), strict=True))
    down, across = (1, len(modes)) if len(models) == 1 else (len(modes), len(models))
    panels = [(model, mode) for mode in modes for model in models]
    graphed = any(row.contender.endswith(" graph") for row in rows)
    lined = any(len(_batches(_of(rows, *panel))) > 1 for panel in panels)
    # Dots side by side share the names of contenders, which stand at the left, unless there are lines between them.
    shared = not lined or down > 1
    most = len({row.contender for row in rows})
    height = (2.3 if lined else 0.75 + 0.19 * (most + 1)) * down + (0.6 if lined else 0.1)
    width = PANEL * across + (1.2 if across < 3 else 0.0)
    with styled():
        figure = Figure(figsize=(width, height), layout="constrained")
        grid = figure.subplots(down, across, squeeze=False)
        for position, (axes, (model, mode)) in enumerate(zip(grid.flat, panels, strict=True)):
            here, leftmost = _of(rows, model, mode), position % across == 0
            if not here:
                axes.set_axis_off()
            elif len(_batches(here)) > 1:
                _lines(axes, here, graphed)
                axes.set_title(f"{model}, {mode}")
                axes.set_ylabel("images/s" if leftmost else "")
            else:
                beside = [row for row in rows if row.mode == mode or down == 1] if shared else here
                names = [*dict.fromkeys(row.contender for row in beside)]
                _dots(axes, here, names, labelled=leftmost or not shared)
                axes.set_title(f"{model}, {mode}, batch {here[0].batch:,}")
        _legend(figure)
    return figure


def _of(rows: Sequence[Row], model: str, mode: str) -> list[Row]:
    return [row for row in rows if (row.model, row.mode) == (model, mode)]


def _batches(rows: Sequence[Row]) -> list[int]:
    return sorted({row.batch for row in rows})


def _colour(contender: str) -> str:
    return COLOURS.get(contender.removesuffix(" graph"), OTHER)


def _lines(axes: Axes, rows: Sequence[Row], graphed: bool) -> None:
    """Images/s against the batch; what is launched operation by operation is dashed where others are graphs."""
    for name in dict.fromkeys(row.contender for row in rows):
        points = sorted((row.batch, row.images_per_s or 0.0) for row in rows if row.contender == name)
        dashed = graphed and not name.endswith(" graph")
        axes.plot(
            *zip(*points, strict=True), color=_colour(name), label=name, marker="o", markersize=2.5, linewidth=1.3,
            linestyle=DASHES if dashed else "-",
        )  # fmt: skip
    floors = sorted({(row.batch, row.batch / row.floor_ms * 1e3) for row in rows})
    axes.plot(*zip(*floors, strict=True), color=INK, linewidth=1.0, linestyle=DOTS, label=FLOOR)
    axes.set(xscale="log", yscale="log", xlabel="batch")
    _ticks_at(axes, _batches(rows))
    _thousands(axes.yaxis, axes.get_ylim(), 8)
    axes.grid(axis="y")


def _dots(axes: Axes, rows: Sequence[Row], names: Sequence[str], *, labelled: bool) -> None:
    """Images/s of one batch size: a dot for each contender, its number beside it, and the floor as a line."""
    top = rows[0].batch / rows[0].floor_ms * 1e3
    values = [row.images_per_s or 0.0 for row in rows]
    for row, value in zip(rows, values, strict=True):
        at = (value, names.index(row.contender))
        axes.plot(*at, marker="o", markersize=5, color=_colour(row.contender), linestyle="none")
        axes.annotate(_short_rate(value), at, (5, 0), textcoords="offset points", va="center", fontsize=7.5)
    axes.axvline(top, color=INK, linewidth=1.0, linestyle=DOTS)
    axes.annotate(
        f"{FLOOR} {_short_rate(top)}", (top, len(names) - 0.4), (-3, 0), textcoords="offset points", ha="right",
        va="center", fontsize=7.5,
    )  # fmt: skip
    axes.set(xscale="log", xlabel="images/s", ylim=(len(names), -0.6))
    # Room for the number beside the fastest.
    low, high = min(values), max(*values, top)
    axes.set_xlim(low / 1.5, high * (high / low) ** 0.12 * 1.3)
    axes.set_yticks(range(len(names)), list(names) if labelled else [""] * len(names))
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y")
    _thousands(axes.xaxis, axes.get_xlim(), 4)


def _short_rate(value: float) -> str:
    """Three figures: 1.44M."""
    return EngFormatter(sep="")(float(f"{value:.3g}"))


def plot_growth(growths: Sequence[Growth]) -> Figure:
    """Milliseconds along each axis, with their exponents, and how the arithmetic grows beside them.

    Args:
        growths: as `grow` gives them.
    """
    if not growths:
        raise ConfigError("growths: expected at least one to draw, got none")
    models, axes_named = (
        [*dict.fromkeys(each.model for each in growths)],
        [*dict.fromkeys(each.axis for each in growths)],
    )
    down, across = (1, len(models)) if len(axes_named) == 1 else (len(models), len(axes_named))
    panels = [(model, axis) for model in models for axis in axes_named]
    width = PANEL if across <= 3 else NARROW_PANEL
    with styled():
        figure = Figure(figsize=(max(LEAST_WIDTH, width * across), 2.4 * down + 0.4), layout="constrained")
        for axes, (model, axis) in zip(figure.subplots(down, across, squeeze=False).flat, panels, strict=True):
            here = [growth for growth in growths if (growth.model, growth.axis) == (model, axis)]
            if here:
                _growth_panel(axes, here)
            else:  # stopped before it was measured
                axes.set_axis_off()
        for axes in figure.axes[::across]:
            axes.set_ylabel("ms")
        _legend(figure)
    return figure


def _growth_panel(axes: Axes, growths: Sequence[Growth]) -> None:
    first = growths[0]
    for growth in growths:
        points = [(value, ms) for value, ms in zip(growth.values, growth.ms, strict=True) if ms is not None]
        if points:
            axes.plot(
                *zip(*points, strict=True), color=_colour(growth.contender), label=growth.contender, marker="o",
                markersize=2.5, linewidth=1.3,
            )  # fmt: skip
    # The arithmetic's line meets the fastest contender at the end: only its slope says something.
    ends = [growth.ms[-1] for growth in growths if growth.ms[-1] is not None]
    if ends:
        work = [each / first.multiply_adds[-1] * min(ends) for each in first.multiply_adds]
        axes.plot(first.values, work, color=INK, linewidth=1.0, linestyle=DOTS, label=ARITHMETIC)
    exponents = [(growth.exponent, _colour(growth.contender)) for growth in growths]
    for row, (exponent, colour) in enumerate([*exponents, (first.exponent_of_arithmetic, INK)]):
        axes.annotate(
            "exponent -" if exponent is None else f"exponent {exponent:.2f}", (0.04, 1.0), (0, -4 - 10 * row), va="top",
            xycoords="axes fraction", textcoords="offset points", fontsize=7.5, color=colour,
        )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel=AXES[first.axis])
    axes.set_title(f"{first.model}, {first.mode}")
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * (high / low) ** (0.1 * (len(growths) + 1)))  # room for the exponents
    _ticks_at(axes, first.values)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 3.0), numticks=8))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(axis="y")


def _ticks_at(axes: Axes, values: Sequence[int]) -> None:
    axes.set_xticks(values, [_short(value) for value in values], minor=False)
    axes.xaxis.set_minor_locator(NullLocator())


def _short(value: int) -> str:
    """65536 as 64k: powers of two have short names."""
    return f"{value // 1024}k" if value >= 1024 and value % 1024 == 0 else f"{value:,}"


def _thousands(axis: Axis, limits: tuple[float, float], most: int) -> None:
    """Ticks such as 10k and 1M; where few decades are seen, also between them."""
    decades = math.log10(limits[1] / limits[0])
    subs = (1.0, 2.0, 5.0) if decades < 1.2 else (1.0, 3.0) if decades < 2.2 else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=most))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(EngFormatter(sep=""))


def _legend(figure: Figure) -> None:
    """One legend below all panels, each name once."""
    handles: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    last = handles.pop(FLOOR, None)
    if last is not None:
        handles[FLOOR] = last
    if handles:
        figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=min(5, len(handles)))
