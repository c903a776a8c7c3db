"""The look that all pictures share, and how they are written.

Strong colours carry the data and fade out into a transparent background, so that one picture is legible on a
light page and on a dark one. The colours are of the Okabe-Ito palette, which does not rely on telling red
from green.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from purecaps.errors import ConfigError
from purecaps.files import atomic_write

INK = "#1f2328"
BLUE = "#0072b2"
VERMILION = "#c44e00"  # a shade darker than Okabe-Ito's, so that white figures on it can be read
GREEN = "#009e73"

STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9.0,
    "text.color": INK,
    "text.parse_math": False,  # a class may be called "$5"
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.linewidth": 0.6,
    "axes.titlesize": 9.0,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "figure.facecolor": "white",
    "grid.color": INK,
    "grid.alpha": 0.12,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "legend.fontsize": 8.0,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.solid_capstyle": "round",
    "savefig.facecolor": "auto",
}
FORMATS = ("png", "svg", "pdf")


@contextmanager
def styled() -> Iterator[None]:
    """The look of all pictures, to draw and to save them under."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A class name in a script that the font lacks shows as boxes; that is no reason to warn.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def save(figure: Figure, path: str | os.PathLike[str], *, dpi: float = 160) -> None:
    """Writes a picture so that a fault leaves the old file or the new one, never half of one.

    Args:
        figure: what to write.
        path: where to; the suffix says the format, .png, .svg or .pdf.
        dpi: dots an inch, for png.
    """
    suffix = Path(path).suffix.lower().removeprefix(".")
    if suffix not in FORMATS:
        raise ConfigError(f"path: expected a file name ending in .png, .svg or .pdf, got {str(path)!r}")
    with styled(), atomic_write(path) as temporary:
        figure.savefig(temporary, format=suffix, dpi=dpi)


def label(text: str, limit: int = 16) -> str:
    """A class's name as one short printable line."""
    line = "".join(c if c.isprintable() else " " for c in text)
    line = " ".join(line.split())
    return (line if len(line) <= limit else line[: limit - 1].rstrip() + "…") or "?"


def tint(colour: str, strength: NDArray[np.float64]) -> NDArray[np.float64]:
    """RGBA [..., 4]: the colour, as opaque as `strength` in 0 to 1 says."""
    rgb = np.array(to_rgb(colour))
    return np.concatenate([np.broadcast_to(rgb, (*strength.shape, 3)), strength[..., None]], axis=-1)


def message(text: str) -> Figure:
    """A picture that says why there is none."""
    with styled():
        figure = Figure(figsize=(4.0, 0.8))
        figure.text(0.5, 0.5, text, ha="center", va="center")
    return figure
