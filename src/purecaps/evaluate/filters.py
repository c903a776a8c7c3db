"""The weights of every capsule layer as one picture, as in the paper's figure of filters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.evaluate.style import BLUE, INK, VERMILION, message, styled, tint

HALF = 32  # columns of a panel that shares its row
STRIP = 2 * HALF  # columns beside each other before a layer goes on below
SHOWN = 5 * STRIP  # columns of a layer that are drawn one by one
GAP = 4.0  # columns between two panels
CELL = 0.104  # inches


def filter_weights(model: nn.Module) -> list[Tensor]:
    """The kernels [kh, kw, C, O, g, n, p] of a P-CapsNet's layers; none for any other model."""
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential):
        return []
    weights = [getattr(getattr(block, "conv", None), "weight", None) for block in blocks]
    return [w.detach() for w in weights if isinstance(w, Tensor) and w.ndim == 7]


def filters(weights: Sequence[Tensor]) -> Figure:
    """One panel a layer, its weights as a matrix of (kh kw) rows, vermilion above zero and blue below.

    A layer of more than 64 columns goes on in strips below. One of more than 320 is shown by means over what
    the layer sums over, its C input capsules and n: its answer to an input that is the same in all of them.
    The panels say so.

    Args:
        weights: a kernel [kh, kw, C, O, g, n, p] for each layer.
    """
    for i, weight in enumerate(weights):
        if weight.ndim != 7:
            raise ConfigError(f"weights[{i}]: expected [kh, kw, C, O, g, n, p], got {list(weight.shape)}")
    if not weights:
        return message("no capsule layers")
    rows = _pack([_panel(i + 1, weight) for i, weight in enumerate(weights)])
    height = sum(max(panel.height for panel in row) for row in rows) + 2.6
    with styled():
        figure = Figure(figsize=((STRIP + GAP + 1.2) * CELL, (height + 1) * CELL))
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        y = 0.0
        for row in rows:
            x = 0.0
            for panel in row:
                _draw(axes, panel, x, y)
                x += panel.width + GAP
            y += max(panel.height for panel in row)
        _key(axes, y)
        # Set last, for imshow moves the limits; y runs downwards, as rows of a matrix do.
        axes.set_xlim(-0.6, STRIP + GAP + 0.6)
        axes.set_ylim(height, -1.0)
        axes.set_aspect("auto")
    return figure


@dataclass(frozen=True)
class _Panel:
    title: str
    note: str
    strips: list[NDArray[np.float32]]  # each [kh kw, up to STRIP]
    limit: float

    @property
    def width(self) -> float:
        """Half a row or all of it, in cells."""
        return HALF if self.strips[0].shape[1] <= HALF else 2 * HALF + GAP

    @property
    def height(self) -> float:
        return 3.6 + sum(len(strip) + 1.0 for strip in self.strips) + 0.8


def _panel(number: int, weight: Tensor) -> _Panel:
    kh, kw, C, out, g, n, p = weight.shape
    values = weight.detach().float().cpu()
    all_columns = C * out * g * n * p
    unit = g * n * p
    notes = []
    if all_columns > SHOWN:
        values = values.mean(dim=(2, 5), keepdim=True)
        unit = g * p
        over = [f"{count} {what}" for count, what in ((C, "input capsules"), (n, "rows n")) if count > 1]
        notes.append(f"mean over {' and '.join(over)}" if over else "")
    matrix: NDArray[np.float32] = values.reshape(kh * kw, -1).numpy()
    if matrix.shape[1] > SHOWN:
        notes.append(f"first {SHOWN} of {matrix.shape[1]:,} columns")
        matrix = matrix[:, :SHOWN]
    # Strips break between kernels where they can.
    step = STRIP // unit * unit if unit <= STRIP else STRIP
    strips = [matrix[:, i : i + step] for i in range(0, matrix.shape[1], step)]
    if len(strips) > 1:
        notes.append(f"in {len(strips)} strips")
    return _Panel(
        title=f"layer {number} · {kh}×{kw}×{C}×{out}×({g}×{n}×{p})",
        note=", ".join([f"{kh * kw}×{all_columns:,}", *filter(None, notes)]),
        strips=strips,
        limit=float(np.abs(matrix).max()),
    )


def _pack(panels: list[_Panel]) -> list[list[_Panel]]:
    """Panels in reading order, as many to a row as there is room for."""
    rows: list[list[_Panel]] = []
    room = -math.inf
    for panel in panels:
        if panel.width > room:
            rows.append([])
            room = STRIP + GAP
        rows[-1].append(panel)
        room -= panel.width + GAP
    return rows


def _draw(axes: Axes, panel: _Panel, x: float, y: float) -> None:
    axes.text(x, y, panel.title, va="top", fontsize=8.5, fontweight="bold")
    axes.text(x, y + 1.7, f"{panel.note}, ±{panel.limit:.2g}", va="top", fontsize=7.5)
    y += 3.6
    stretch = panel.width / (HALF if panel.width == HALF else STRIP)  # over the gap, to end where others do
    for strip in panel.strips:
        height, width = strip.shape
        _weights(axes, strip / (panel.limit or 1.0), (x, x + width * stretch, y + height, y))
        y += height + 1.0


def _weights(axes: Axes, relative: NDArray[np.float32], extent: tuple[float, float, float, float]) -> None:
    strength = np.abs(relative).astype(np.float64)
    colours = np.where((relative > 0)[..., None], tint(VERMILION, strength), tint(BLUE, strength))
    axes.imshow(colours, extent=extent, interpolation="none")
    left, right, bottom, top = extent
    frame = Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=INK, alpha=0.35, linewidth=0.5)
    axes.add_patch(frame)


def _key(axes: Axes, y: float) -> None:
    left, width = 4.0, 16.0
    _weights(axes, np.linspace(-1, 1, 65, dtype=np.float32)[None], (left, left + width, y + 1.2, y))
    for x, text, side in ((left - 0.6, "−", "right"), (left + width + 0.6, "+", "left")):
        axes.text(x, y + 0.6, text, ha=side, va="center", fontsize=8)
    axes.text(left + width + 3.0, y + 0.6, "each layer on its own scale, blank is zero", va="center", fontsize=7.5)
