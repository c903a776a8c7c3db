"""`purecaps predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from purecaps import data
from purecaps.cli.options import Device, PretrainedModel, Seed, Weights, load_trained
from purecaps.cli.support import out
from purecaps.models.guided import has_lengths
from purecaps.train import pick_device


def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    *,
    model: PretrainedModel = None,
    checkpoint: Weights = None,
    invert: Annotated[
        bool, typer.Option("--invert", help="Swap dark and light: MNIST's digits are light on dark.")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Print the class lengths of images, longest first; of a network whose scores are logits, the probabilities."""
    chosen = pick_device(device)
    trained = load_trained(checkpoint, model).to(chosen)
    lengths = has_lengths(trained.model)
    for path in images:
        image = data.load_image(path, trained.info.image_shape, invert=invert)
        scores = trained.scores(image[None].to(chosen))[0].cpu()
        if not lengths:
            scores = scores.softmax(dim=0)
        names = trained.info.class_names
        # Not the table's title: that would be broken at the table's width.
        out.print(str(path), style="italic", soft_wrap=True)
        table = Table(box=None, pad_edge=False)
        table.add_column("class")
        table.add_column("length" if lengths else "probability", justify="right")
        table.add_column("")
        for index in scores.argsort(descending=True).tolist():
            score = float(scores[index])
            table.add_row(
                names[index],
                f"{score:.4f}",
                "█" * round(30 * score),
                style="bold" if index == int(scores.argmax()) else None,
            )
        out.print(table)
