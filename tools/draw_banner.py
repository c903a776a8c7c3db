"""Draws the README's picture: one digit on its way through the five capsule layers of pcapsnet2.

    python tools/draw_banner.py docs/images/pcapsnet2.png

Every small image is one number of the capsules over the map: a layer of 1 x 4 x 8 capsules has 32.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

import purecaps
from purecaps.evaluate.style import BLUE, INK, save, styled

SAMPLE = Path(__file__).parent.parent / "tests" / "assets" / "mnist_sample.npz"
DIGIT = 15  # a five


def mosaic(capsules: torch.Tensor, gap: int = 1) -> np.ndarray:
    """Capsules [1, H, W, g, m, p] as m rows of p images, NaN between them."""
    _, height, width, _, m, p = capsules.shape
    rows, columns = (m, p) if m > 1 else (4, p // 4)
    tiles = capsules[0, :, :, 0].permute(2, 3, 0, 1).reshape(rows, columns, height, width).numpy()
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan)
    for row in range(rows):
        for column in range(columns):
            top, left = row * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = tiles[row, column]
    return sheet


def draw(path: Path) -> None:
    with np.load(SAMPLE, allow_pickle=False) as file:
        image = torch.from_numpy(file["images"][DIGIT]).reshape(1, 1, 28, 28) / 255
    model = purecaps.create_model("pcapsnet2", pretrained=True)
    with torch.inference_mode():
        maps = [feature[0] for feature in model.features(image)]
        lengths = model(image)[0]
    with styled():
        # Widths in units of the common height, so that all panels are equally high and their titles line up.
        figure = Figure(figsize=(11, 1.72))
        grid = {"left": 0.005, "right": 0.995, "top": 0.76, "bottom": 0.11, "wspace": 0.07}
        panels = figure.subplots(1, 6, width_ratios=[1, 1, 2.0, 1, 2.07, 2.2], gridspec_kw=grid)
        panels[0].imshow(image[0, 0], cmap="gray_r")
        panels[0].set_title("image\n28 x 28", fontsize=9)
        names = ["1x1x16 capsules", "1x4x8", "1x4x4", "1x4x8"]
        for number, (panel, capsules, name) in enumerate(zip(panels[1:5], maps[:4], names, strict=True), start=1):
            sheet = mosaic(capsules)
            limit = np.nanmax(np.abs(sheet))
            panel.imshow(sheet, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
            size = "x".join(map(str, capsules.shape[1:3]))
            panel.set_title(f"layer {number}, {size}\n{name}", fontsize=9)
        for panel in panels[:5]:
            panel.set_axis_off()
            panel.set_anchor("NW")
        last = panels[5]
        colours = [BLUE if index == int(lengths.argmax()) else "#b8bcc4" for index in range(10)]
        last.bar(range(10), lengths, color=colours)
        last.set_xticks(range(10))
        last.set_yticks([])
        last.set_ylim(0, 1)
        last.tick_params(labelsize=8, colors=INK, length=0)
        last.set_title("layer 5: ten 1x4x4 capsules,\ntheir lengths", fontsize=9)
        for side in ("top", "right", "left"):
            last.spines[side].set_visible(False)
        save(figure, path, dpi=150)


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
