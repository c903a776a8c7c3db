"""`purecaps predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from torch import Tensor

from purecaps import data
from purecaps.cli.options import Device, PretrainedModel, Seed, Weights, load_trained
from purecaps.cli.support import out, say
from purecaps.data.image import shown_size
from purecaps.errors import ConfigError, DataError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models.guided import has_lengths
from purecaps.train import pick_device

# Sides of an image that differ by more than this factor from the network's are told to have been stretched.
MOST_STRETCH = 1.25
OF_DIGITS = "mnist"  # the data set that --fit lays images out as


def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    *,
    model: PretrainedModel = None,
    checkpoint: Weights = None,
    invert: Annotated[
        bool, typer.Option("--invert", help="Swap dark and light: MNIST's digits are light on dark.")
    ] = False,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Find the digit, on light or dark ground, and crop, scale and centre it as MNIST's."
        ),
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Print the class lengths of images, longest first; of a network whose scores are logits, the probabilities."""
    if fit and invert:
        raise ConfigError("--invert: expected none with --fit, which tells ink from its ground by itself, got both")
    chosen = pick_device(device)
    trained = load_trained(checkpoint, model).to(chosen)
    shape = trained.info.image_shape
    if fit and (shape[0] != 1 or shape[1] != shape[2]):
        raise ConfigError(f"--fit: expected a network of grey, square images such as MNIST's, got one of {shape}")
    of_digits = trained.info.trained_on == OF_DIGITS
    unread = 0
    for path in images:
        try:
            image = _read(path, shape, invert=invert, fit=fit, of_digits=of_digits)
        except DataError as error:
            if len(images) == 1:
                raise
            say(str(error))
            unread += 1
            continue
        _print(path, trained, trained.scores(image[None].to(chosen))[0].cpu())
    if unread:
        raise DataError(f"{unread} of {len(images)} images could not be read")


def _print(path: Path, trained: TrainedModel, scores: Tensor) -> None:
    lengths = has_lengths(trained.model)
    if not lengths:
        scores = scores.softmax(dim=0)
    # Not the table's title: that would be broken at the table's width.
    out.print(str(path), style="italic", soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    table.add_column("class")
    table.add_column("length" if lengths else "probability", justify="right")
    table.add_column("")
    for index in scores.argsort(descending=True).tolist():
        score = float(scores[index])
        table.add_row(
            trained.info.class_names[index],
            f"{score:.4f}",
            "█" * round(30 * score),
            style="bold" if index == int(scores.argmax()) else None,
        )
    out.print(table)


def _read(path: Path, shape: tuple[int, int, int], *, invert: bool, fit: bool, of_digits: bool) -> Tensor:
    if fit:
        return data.load_digit(path, shape)
    image = data.load_image(path, shape, invert=invert)
    rows, columns = shown_size(path)
    _, height, width = shape
    stretch = (rows * width) / (columns * height)
    if max(stretch, 1 / stretch) > MOST_STRETCH:
        hint = "; --fit would find a digit in it and keep its proportions" if of_digits else ""
        say(f"{path}: stretched from {columns}x{rows} pixels to {width}x{height}{hint}")
    return image
