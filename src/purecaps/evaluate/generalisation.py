"""The generalisation gap: loss and error on images that were trained on and on images that were held out, over a run.

Both are taken in eval mode on untransformed images, by the same weights: a run logs them where its recipe has
`val_size` and `probe_size`. The logged "loss" of the steps themselves is no substitute: it is of augmented images, with
dropout on where there is any, and by the weights of many steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from purecaps.errors import ConfigError
from purecaps.evaluate.pictures import log_scale
from purecaps.evaluate.style import BLUE, GREEN, VERMILION, message, styled

MEASURES = ("loss", "error")
NAMES = tuple(f"{images}_{measure}" for images in ("val", "train") for measure in MEASURES)


@dataclass(frozen=True)
class GapCurves:
    """What several seeds of one network gave, all at the same steps.

    Args:
        seeds: for each what `curves_of` gives.
    """

    seeds: Sequence[Mapping[str, Sequence[float]]]

    def __post_init__(self) -> None:
        if not self.seeds or any(list(each["step"]) != list(self.steps) for each in self.seeds):
            raise ConfigError("seeds: expected at least one, all looked at after the same steps, got others")

    @property
    def steps(self) -> Sequence[float]:
        return self.seeds[0]["step"]

    def mean(self, name: str) -> NDArray[np.float64]:
        """The mean curve of "train_loss", "val_loss", "train_error" or "val_error"."""
        mean: NDArray[np.float64] = np.asarray([each[name] for each in self.seeds], dtype=float).mean(axis=0)
        return mean

    def final(self, measure: str) -> list[float]:
        """The gap in "loss" or "error" at the end, held-out images less training images, one a seed."""
        return [each[f"val_{measure}"][-1] - each[f"train_{measure}"][-1] for each in self.seeds]


def curves_of(history: Sequence[Mapping[str, float]], seed: int) -> dict[str, list[float]]:
    """What a run's metrics say of one seed's held-out images, and of its training images where they were watched.

    Args:
        history: the run's rows.
        seed: which; a run of several has each by itself, as "val_loss/3".

    Returns:
        Columns of equal length: "step", "val_loss", "val_error" and, with a probe, "train_loss" and "train_error".
    """
    rows = [row for row in history if "val_loss" in row]
    if not rows:
        raise ConfigError("history: expected rows with val_loss, got none; the recipe needs a val_size above 0")
    columns: dict[str, list[float]] = {"step": [row["step"] for row in rows]}
    for name in NAMES:
        key = f"{name}/{seed}" if f"{name}/{seed}" in rows[0] else name
        if key in rows[0]:
            columns[name] = [row[key] for row in rows]
    return columns


def gap_picture(curves: Mapping[str, GapCurves]) -> Figure:
    """Loss and error: above, each network's curves on training and on held-out images, below the gap between them.

    Curves are means over seeds. The upper ones are on a logarithmic scale, where a distance is a ratio.

    Args:
        curves: by what the network is called.
    """
    if not curves:
        return message("no curves")
    colours = dict(zip(curves, (BLUE, VERMILION, GREEN), strict=False))
    with styled():
        figure = Figure(figsize=(7.2, 5.2), layout="constrained")
        upper, lower = figure.subplots(2, 2, sharex="col", height_ratios=(3, 2))
        for above, below, measure in zip(upper, lower, MEASURES, strict=True):
            for name, each in curves.items():
                _curves(above, each, measure, colours[name], name)
                gap = np.asarray(each.mean(f"val_{measure}")) - np.asarray(each.mean(f"train_{measure}"))
                below.plot(each.steps, gap, color=colours[name], linewidth=1.5)
            log_scale(above, np.concatenate([np.asarray(line.get_ydata(), dtype=float) for line in above.lines]))
            above.set_title("loss" if measure == "loss" else "error, %")
            below.set_ylabel("gap" if measure == "loss" else "gap, points")
            below.set_ylim(bottom=min(0.0, below.get_ylim()[0]))
            below.set_xlabel("step")
            below.set_xlim(left=0)
            for axes in (above, below):
                axes.grid(axis="y")
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper left", ncols=len(curves), fontsize=8)
    return figure


def _curves(axes: Axes, curves: GapCurves, measure: str, colour: str, name: str) -> None:
    train, held_out = curves.mean(f"train_{measure}"), curves.mean(f"val_{measure}")
    axes.plot(curves.steps, held_out, color=colour, linewidth=1.5, label=f"{name}, held out")
    axes.plot(curves.steps, train, color=colour, linewidth=1.2, linestyle=(0, (3, 1.5)), label=f"{name}, trained on")
