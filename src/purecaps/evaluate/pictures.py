"""Pictures of a run: confusion matrix, worst mistakes, training curves, filters.

Every function returns a `Figure` of its own; pyplot, which keeps figures alive, is never imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from numpy.typing import NDArray
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.evaluate.classification import Result
from purecaps.evaluate.filters import filter_weights, filters
from purecaps.evaluate.style import BLUE, GREEN, INK, VERMILION, label, message, save, styled, tint

__all__ = [
    "confusion_matrix",
    "filter_weights",
    "filters",
    "save",
    "training_curves",
    "worst_images",
]

ANNOTATED_CLASSES = 20
LABELLED_CLASSES = 120
CURVE_POINTS = 200


def confusion_matrix(result: Result, class_names: Sequence[str] | None = None) -> Figure:
    """Counts of true class (rows) against predicted class (columns).

    Colour is kept for the mistakes, on a root scale, and the diagonal only has a tint: with one scale for
    both, a thousand right answers leave ten wrong ones white. Counts are written in for up to 20 classes.

    Args:
        result: what to count.
        class_names: K names; the classes' indexes if left out.
    """
    names = [label(name) for name in result.names(class_names)]
    counts = result.confusion.numpy()
    k = len(names)
    annotated = k <= ANNOTATED_CLASSES
    side = max(2.2, 0.38 * k) if annotated else min(9.0, max(6.4, 0.09 * k))
    points = 72.0 * side / k  # of a cell's side
    mistakes = counts * (1 - np.eye(k, dtype=counts.dtype))
    top = max(1, int(mistakes.max()))
    strength = np.sqrt(mistakes / top)

    with styled():
        figure = Figure(figsize=(side + (1.0 if annotated else 1.7), side + 0.9), layout="constrained")
        axes = figure.add_subplot()
        axes.imshow(tint(VERMILION, strength), interpolation="none")
        axes.imshow(tint(BLUE, 0.22 * np.eye(k)), interpolation="none")
        every = math.ceil(k / LABELLED_CLASSES)
        tick_size = min(8.0, 0.8 * points * every)
        upright = max(len(name) for name in names) * tick_size * 0.62 > points * every
        axes.set_xticks(
            range(0, k, every),
            names[::every],
            fontsize=tick_size,
            rotation=90 if upright else 0,
        )
        axes.set_yticks(range(0, k, every), names[::every], fontsize=tick_size)
        axes.tick_params(length=0)
        axes.set_xlabel("predicted class")
        axes.set_ylabel("true class")
        axes.set_xticks(np.arange(k + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(k + 1) - 0.5, minor=True)
        axes.grid(which="minor", linewidth=0.5 if annotated else 0.25)
        axes.tick_params(which="minor", length=0)
        axes.spines[:].set_visible(False)
        if annotated:
            size = min(9.0, 0.9 * points / (0.64 * len(str(counts.max()))))
            for row, column in np.argwhere(counts > 0):
                axes.text(
                    float(column),
                    float(row),
                    str(counts[row, column]),
                    ha="center",
                    va="center_baseline",
                    fontsize=size,
                    color="white" if strength[row, column] > 0.85 else INK,
                )
        else:
            _key(axes, top)
    return figure


def worst_images(images: Tensor, result: Result, class_names: Sequence[str] | None = None) -> Figure:
    """The worst mistakes as a grid: each image with its true and its predicted class and their scores.

    Args:
        images: uint8 [k, C, H, W], those at `result.most_confused(k)`, in that order.
        result: where their classes and scores stand.
        class_names: K names; the classes' indexes if left out.
    """
    worst = describe_mistakes(len(images), result, class_names)
    wide = any(len(mistake.classes) > 12 for mistake in worst)
    columns = min(len(images), 5 if wide else 8)
    if not columns:
        return message("no mistakes")
    rows = math.ceil(len(images) / columns)
    with styled():
        figure = Figure(
            figsize=((1.6 if wide else 1.0) * columns + 0.1, (1.45 if wide else 1.38) * rows),
            layout="constrained",
        )
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in grid:
            axes.set_axis_off()
        for axes, image, mistake in zip(grid, images, worst, strict=False):
            axes.imshow(picture(image), cmap="gray", vmin=0, vmax=255, interpolation="none")
            for text, down, size in ((mistake.classes, 4, 8.5), (mistake.scores, 16, 7.5)):
                axes.annotate(
                    text,
                    (0.5, 0.0),
                    (0, -down),
                    xycoords="axes fraction",
                    textcoords="offset points",
                    ha="center",
                    va="top",
                    fontsize=size,
                )
    return figure


class Mistake(NamedTuple):
    """What a caption of a wrongly classified image says."""

    true: str
    predicted: str
    true_score: float
    predicted_score: float

    @property
    def classes(self) -> str:
        return f"{self.true} → {self.predicted}"

    @property
    def scores(self) -> str:
        return f"{self.true_score:.2f} → {self.predicted_score:.2f}"


def describe_mistakes(k: int, result: Result, class_names: Sequence[str] | None = None) -> list[Mistake]:
    """The k worst mistakes, the worst first, in short printable names."""
    names = [label(name) for name in result.names(class_names)]
    worst = result.most_confused(k)
    if len(worst) < k:
        raise ConfigError(f"images: expected at most {len(worst)}, one for each mistake, got {k}")
    described = []
    for index in worst:
        scores, true, predicted = (
            result.scores[index],
            int(result.labels[index]),
            int(result.predictions[index]),
        )
        described.append(Mistake(names[true], names[predicted], float(scores[true]), float(scores[predicted])))
    return described


def picture(image: Tensor) -> NDArray[np.uint8]:
    """A uint8 image [C, H, W] as grey [H, W] or, with three channels, colour [H, W, 3]."""
    pixels: NDArray[np.uint8] = image.cpu().numpy()
    if len(pixels) == 3:
        return np.ascontiguousarray(pixels.transpose(1, 2, 0))
    grey: NDArray[np.uint8] = pixels.mean(axis=0).round().astype(np.uint8)
    return grey


def training_curves(history: Sequence[Mapping[str, float]], *, test_error: float | None = None) -> Figure:
    """Error, loss and learning rate against the step.

    Args:
        history: rows with "step" and any of "error", "val_error" (percent), "loss", "val_loss", "lr".
        test_error: the final test error in percent, drawn as a level line.
    """
    series = {key: _series(history, key) for key in ("error", "val_error", "loss", "val_loss", "lr")}
    panels = [
        (title, keys, height)
        for title, keys, height in (
            ("error, %", ("error", "val_error"), 3.0),
            ("loss", ("loss", "val_loss"), 3.0),
            ("learning rate", ("lr",), 1.0),
        )
        if any(len(series[key][0]) for key in keys)
    ]
    if not panels:
        return message("no steps were logged")
    heights = [height for _, _, height in panels]
    with styled():
        figure = Figure(figsize=(4.9, 0.52 * sum(heights) + 0.5 * len(panels) + 0.4), layout="constrained")
        stack = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
        for axes, (title, keys, _) in zip(stack, panels, strict=True):
            for key in keys:
                _curve(axes, key, *series[key])
            shown = np.concatenate([series[key][1] for key in keys])
            if "error" in keys and test_error is not None:
                axes.axhline(test_error, color=GREEN, linewidth=1.2, linestyle=(0, (4, 2)), label="test")
                shown = np.append(shown, test_error)
            axes.set_title(title)
            axes.grid(axis="y")
            if keys == ("lr",):
                axes.set_ylim(0.0, 1.1 * shown.max() or 1.0)
                axes.set_yticks([0.0, shown.max()], ["0", f"{shown.max():.2g}"])
            else:
                log_scale(axes, shown)
                axes.legend(loc="lower right", bbox_to_anchor=(1.01, 0.97), ncols=3, borderaxespad=0.2)
        stack[-1].set_xlabel("step")
        stack[-1].set_xlim(left=0.0)
        stack[-1].xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
        stack[-1].xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    return figure


def _curve(axes: Axes, key: str, steps: NDArray[np.float64], values: NDArray[np.float64]) -> None:
    if not len(steps):
        return
    single = "o" if len(steps) == 1 else ""  # a line of one point is not seen
    if key == "lr":
        axes.plot(steps, values, color=INK, linewidth=1.2, marker=single, markersize=3)
    elif key.startswith("val_"):
        marker = "o" if len(steps) <= 60 else ""
        axes.plot(steps, values, color=VERMILION, linewidth=1.5, marker=marker, markersize=3, label="validation")
    else:
        axes.plot(steps, values, color=BLUE, linewidth=1.2, marker=single, markersize=3, label="training")


def _series(history: Sequence[Mapping[str, float]], key: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Steps and finite values of one column, as at most `CURVE_POINTS` means. Of a step twice, the last."""
    by_step = {float(row["step"]): float(row[key]) for row in history if row.get(key) is not None}
    points = np.array(sorted(item for item in by_step.items() if math.isfinite(item[1]))).reshape(-1, 2)
    every = math.ceil(len(points) / CURVE_POINTS)
    if every > 1:
        starts = np.arange(0, len(points), every)
        points = np.add.reduceat(points, starts) / np.diff(np.append(starts, len(points)))[:, None]
    return points[:, 0], points[:, 1]


def log_scale(axes: Axes, values: NDArray[np.float64]) -> None:
    """A log scale where the values span more than a factor of eight; zeros get a place at its foot."""
    positive = values[values > 0]
    if not len(positive) or (values < 0).any() or positive.max() <= 8 * positive.min():
        axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
        return
    decades = math.log10(positive.max() / positive.min())
    locator = LogLocator(subs=(1.0, 2.0, 5.0) if decades <= 2.2 else (1.0,), numticks=8)
    if len(positive) < len(values):
        axes.set_yscale("symlog", linthresh=positive.min(), linscale=0.4)
        axes.set_ylim(bottom=-0.2 * positive.min())
        ticks = [t for t in locator.tick_values(positive.min(), positive.max()) if t >= positive.min()]
        axes.set_yticks([0.0, *ticks])
        axes.set_ylim(top=1.2 * positive.max())
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(locator)
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))


def _key(axes: Axes, top: int) -> None:
    """The key to the mistakes' colour, beside a confusion matrix without numbers in it."""
    key = axes.inset_axes((1.02, 0.0, 0.02, 0.4))
    ramp = np.linspace(0.0, 1.0, 128)[::-1, None]
    key.imshow(tint(VERMILION, ramp), extent=(0, 1, 0, 1), aspect="auto", interpolation="none")
    ticks = sorted({0, *(round(top * part) for part in (0.05, 0.25, 0.55, 1.0))})
    key.set_yticks([math.sqrt(t / top) for t in ticks], [f"{t:,}" for t in ticks])
    key.yaxis.tick_right()
    key.set_xticks([])
    key.spines[:].set_visible(False)
    key.set_title("mistakes", fontsize=8, pad=8)
