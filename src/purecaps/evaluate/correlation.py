"""How much a kernel's positions resemble each other: the paper's correlation matrices, with what chance alone gives.

The paper reshapes a layer's kernels to one row a kernel position, 9x16 and 9x32 for the first two layers of pcapsnet2
and 25x256 and 25x65536 for the CNN's, and takes Pearson's correlation between rows. A row has as many numbers as the
layer has filters, and short rows correlate by chance: of 16 independent normal numbers by 0.21 on average, of 65,536 by
0.003, sign aside. So a mean is only told with that chance beside it, and two layers are compared at equal row length.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.evaluate.filters import filter_weights
from purecaps.evaluate.style import BLUE, INK, VERMILION, message, styled, tint
from purecaps.ops.validation import shape_text


def kernels(model: nn.Module) -> list[Tensor]:
    """A network's convolution kernels in order: capsule kernels of a P-CapsNet, or those of its nn.Conv2d layers."""
    found = filter_weights(model)
    return found or [layer.weight.detach() for layer in model.modules() if isinstance(layer, nn.Conv2d)]


def position_rows(weight: Tensor) -> Tensor:
    """A kernel as [kernel positions, filters]: what the paper correlates the rows of.

    Args:
        weight: a capsule kernel [kh, kw, C, O, g, n, p], or one of nn.Conv2d [O, C, kh, kw].
    """
    if weight.dim() == 7:
        rows = weight.flatten(2).flatten(0, 1)
    elif weight.dim() == 4:
        rows = weight.permute(2, 3, 0, 1).flatten(2).flatten(0, 1)
    else:
        raise ConfigError(f"weight: expected [kh, kw, C, O, g, n, p] or [O, C, kh, kw], got {shape_text(weight.shape)}")
    if rows.shape[0] < 2 or rows.shape[1] < 3:
        raise ConfigError(
            f"weight: expected at least 2 kernel positions and 3 filters, got {rows.shape[0]} and {rows.shape[1]}"
        )
    return rows


@dataclass(frozen=True, eq=False)
class Correlation:
    """The correlations between a kernel's positions.

    Args:
        matrix: Pearson's correlation of every two positions [kh*kw, kh*kw].
        filters: how many numbers each position has.
    """

    matrix: Tensor
    filters: int

    @property
    def pairs(self) -> Tensor:
        """The correlation of each pair of different positions, once."""
        return _pairs(self.matrix)

    @property
    def mean_abs(self) -> float:
        """The mean absolute correlation off the diagonal."""
        return float(self.pairs.abs().mean())

    @property
    def mean(self) -> float:
        """The mean correlation off the diagonal, with its sign."""
        return float(self.pairs.mean())

    @property
    def by_chance(self) -> float:
        """What `mean_abs` is on average for independent weights."""
        return chance(self.filters)

    @property
    def squared_beyond_chance(self) -> float:
        """The mean squared correlation less what chance adds to it: about 0 for independent weights of any number.

        For independent rows of L numbers r^2 is 1/(L-1) on average: this is (mean r^2 - 1/(L-1)) / (1 - 1/(L-1)).
        """
        by_chance = 1 / (self.filters - 1)
        return (float(self.pairs.square().mean()) - by_chance) / (1 - by_chance)


def _pairs(matrix: Tensor) -> Tensor:
    size = matrix.shape[-1]
    row, column = torch.triu_indices(size, size, offset=1)
    return matrix[..., row, column]


def correlate(weight: Tensor) -> Correlation:
    """The correlations between the positions of a kernel; arguments as for `position_rows`."""
    rows = position_rows(weight).double()
    if not (rows != rows[:, :1]).any(dim=1).all():
        raise ConfigError("weight: expected numbers that differ at every kernel position, got the same one throughout")
    return Correlation(_correlations(rows), rows.shape[1])


def _correlations(rows: Tensor) -> Tensor:
    """[..., positions, filters] to [..., positions, positions]."""
    rows = rows - rows.mean(dim=-1, keepdim=True)
    rows = rows / rows.norm(dim=-1, keepdim=True)
    return (rows @ rows.mT).clamp(-1, 1)


def chance(filters: int) -> float:
    """The mean absolute correlation of two independent rows of so many normal numbers.

    Their r^2 is Beta(1/2, (L-2)/2) distributed, and so |r| has the mean Gamma((L-1)/2) / (sqrt(pi) Gamma(L/2)).
    """
    return math.exp(math.lgamma((filters - 1) / 2) - math.lgamma(filters / 2)) / math.sqrt(math.pi)


def mean_abs_of_few(weight: Tensor, filters: int, *, draws: int = 500, seed: int = 0) -> float:
    """`Correlation.mean_abs` of a kernel with only so many of its filters, averaged over random choices.

    What a layer of many filters is to be compared by with one of few.

    Args:
        weight: as for `position_rows`.
        filters: how many to choose each time.
        draws: how often.
        seed: of the choices.
    """
    rows = position_rows(weight).double().cpu()
    if not 3 <= filters <= rows.shape[1]:
        raise ConfigError(f"filters: expected 3 to {rows.shape[1]}, as many as the layer has, got {filters}")
    generator = torch.Generator().manual_seed(seed)
    # One shuffle of all filters is as many choices as it has whole groups.
    groups = rows.shape[1] // filters
    shuffles = [torch.randperm(rows.shape[1], generator=generator) for _ in range(math.ceil(draws / groups))]
    chosen = torch.cat([order[: groups * filters].view(groups, filters) for order in shuffles])[:draws]
    found = _correlations(rows[:, chosen].transpose(0, 1))  # [draws, positions, positions]
    return float(_pairs(found).abs().mean())


@dataclass(frozen=True)
class Panel:
    """A matrix to draw [P, P], with a title and a line below it."""

    title: str
    note: str
    matrix: Tensor


def matrices(panels: Sequence[Panel], *, columns: int = 4) -> Figure:
    """Correlation matrices beside each other, vermilion above zero and blue below, all on the scale from -1 to 1.

    Args:
        panels: what to draw.
        columns: how many to a row.
    """
    if not panels:
        return message("no kernels")
    columns = min(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    with styled():
        engine = ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.08)  # inches; titles are not to touch the notes above
        figure = Figure(figsize=(2.2 * columns + 0.5, 2.75 * rows), layout=engine)
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
        for axes in grid:
            axes.set_axis_off()
        for axes, panel in zip(grid, panels, strict=False):
            _draw(axes, panel)
        _key(grid[columns - 1])
    return figure


def _draw(axes: Axes, panel: Panel) -> None:
    matrix: NDArray[np.float64] = panel.matrix.double().cpu().numpy().copy()
    size = len(matrix)
    np.fill_diagonal(matrix, 0.0)  # it is 1 in every matrix; in full colour it would be all one sees
    axes.imshow(_colours(matrix), interpolation="none")
    axes.imshow(tint(INK, 0.25 * np.eye(size)), interpolation="none")
    axes.set_axis_on()
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_alpha(0.35)
    axes.set_title(panel.title, fontweight="bold", fontsize=8.5)
    axes.set_xlabel(panel.note, fontsize=7.5, loc="left", linespacing=1.35)


def _colours(values: NDArray[np.float64]) -> NDArray[np.float64]:
    strength = np.abs(values)
    return np.where((values > 0)[..., None], tint(VERMILION, strength), tint(BLUE, strength))


def _key(axes: Axes) -> None:
    key = axes.inset_axes((1.06, 0.0, 0.05, 1.0))
    key.imshow(_colours(np.linspace(1.0, -1.0, 129)[:, None]), extent=(0, 1, -1, 1), aspect="auto")
    key.set_yticks([-1, 0, 1], ["−1", "0", "1"])
    key.yaxis.tick_right()
    key.tick_params(length=0)
    key.set_xticks([])
    key.spines[:].set_visible(True)
    key.spines[:].set_alpha(0.35)
