"""An attack as one picture: accuracy against eps, and some images before and after with what they were taken for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from purecaps.errors import ConfigError
from purecaps.evaluate.attacks.measure import AttackResult
from purecaps.evaluate.pictures import picture
from purecaps.evaluate.style import BLUE, INK, VERMILION, label, styled

ROWS = 7  # of perturbed images; of more sizes, some are left out


def attack_picture(result: AttackResult, class_names: Sequence[str], *, title: str) -> Figure:
    """Accuracy with its 95 % interval above; below a row of images for each eps, wrong predictions in vermilion.

    The examples' true classes stand above them in bold, what the network took an image for below it.

    Args:
        result: what `measure` found.
        class_names: what the classes are called.
        title: what was attacked, and how.
    """
    if int(max(result.labels.max(), result.predictions.max())) >= len(class_names):
        raise ConfigError(
            f"class_names: expected one for each class seen, up to {int(result.predictions.max())}, "
            f"got {len(class_names)}"
        )
    points = [result.clean, *result.points]
    order = sorted(range(len(points)), key=lambda position: points[position].eps)
    # The clean row, the largest eps, and what fits between at equal distances.
    rows = [order[round(i)] for i in np.linspace(0, len(order) - 1, min(len(order), 1 + ROWS))]
    columns = len(result.labels)
    names = [label(name, 10) for name in class_names]
    # Room for the longest name below an image.
    width = max(4.9, (0.62 if max(map(len, names)) <= 7 else 0.8) * columns + 0.7)
    with styled():
        figure = Figure(figsize=(width, 2.6 + 0.84 * len(rows)), layout="constrained")
        upper, lower = figure.subfigures(2, 1, squeeze=False, height_ratios=[2.6, 0.84 * len(rows)])[:, 0]
        upper.suptitle(title, x=0.01, ha="left", fontsize=9)
        _curve(upper.add_subplot(), result, order)
        grid = lower.subplots(len(rows), columns, squeeze=False)
        for line, position in enumerate(rows):
            for column in range(columns):
                axes = grid[line, column]
                pixels = (result.examples[position, column] * 255).round().byte()
                axes.imshow(picture(pixels), cmap="gray", vmin=0, vmax=255, interpolation="none")
                axes.set_xticks([])
                axes.set_yticks([])
                axes.spines[:].set_visible(False)
                predicted = int(result.predictions[position, column])
                right = predicted == int(result.labels[column])
                axes.set_xlabel(names[predicted], fontsize=8, labelpad=1.5, color=INK if right else VERMILION)
                if line == 0:
                    axes.set_title(
                        names[int(result.labels[column])], fontsize=8, loc="center", fontweight="bold", pad=3
                    )
            text = "clean" if position == 0 else f"{points[position].eps:g}"
            grid[line, 0].set_ylabel(text, rotation=0, ha="right", va="center", labelpad=6, fontsize=8)
    return figure


def _curve(axes: Axes, result: AttackResult, order: Sequence[int]) -> None:
    points = [[result.clean, *result.points][position] for position in order]
    eps, accuracy = [point.eps for point in points], [point.accuracy for point in points]
    low, high = zip(*(point.interval() for point in points), strict=True)
    axes.fill_between(eps, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(eps, accuracy, color=BLUE, linewidth=1.5, marker="o", markersize=3.5, clip_on=False)
    axes.set_xlabel("eps: the most that a pixel of [0, 1] changes")
    axes.set_title(f"accuracy, % of {len(result):,} images (band: 95 % interval)")
    axes.set_ylim(0, 100)
    axes.set_xlim(0, max(eps) or 1)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5))
    axes.grid(axis="y")
