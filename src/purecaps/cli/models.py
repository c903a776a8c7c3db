"""`purecaps models`."""

from __future__ import annotations

from typing import Annotated

import torch
import typer
from rich.table import Table

from purecaps.cli.options import Device, Seed
from purecaps.cli.support import out
from purecaps.errors import unknown_name
from purecaps.models import create_model, list_models
from purecaps.models.decoder import count_parameters
from purecaps.models.images import ImageNetwork
from purecaps.models.pcapsnet import PCapsNet
from purecaps.models.registry import get_entry
from purecaps.models.store import load_pretrained, pretrained_path


def models(
    pattern: Annotated[str | None, typer.Argument(help="Shell pattern of names.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """List the networks: parameters, multiply-adds, input and the pretrained error.

    Parameters and multiply-adds are those that it takes to classify an image; a decoder serves training alone.
    """
    names = list_models(pattern)
    if not names:
        raise unknown_name("model", pattern or "", list_models())
    rows = [_row(name) for name in names]
    columns = ["model", "parameters", "decoder's", "multiply-adds", "input", "pretrained error"]
    if not any(row["decoder's"] for row in rows):
        columns.remove("decoder's")
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[column] or "-" for column in columns))
    out.print(table)


def _row(name: str) -> dict[str, str]:
    """What the table says of a network, column by column; nothing where there is nothing to say."""
    with torch.device("meta"):  # sizes only: the largest has 140 MB of weights
        network = create_model(name)
    classifying, decoding = count_parameters(network)
    return {
        "model": name,
        "parameters": f"{classifying:,}",
        "decoder's": f"{decoding:,}" if decoding else "",
        "multiply-adds": f"{network.multiply_adds():,}" if isinstance(network, PCapsNet | ImageNetwork) else "",
        "input": "x".join(map(str, get_entry(name).in_shape)),
        "pretrained error": _pretrained_error(name),
    }


def _pretrained_error(name: str) -> str:
    if pretrained_path(name) is None:
        return ""
    info = load_pretrained(name, None, 10, {})[1]
    return f"{info.record['test_error']:.2f} % {info.trained_on}"
