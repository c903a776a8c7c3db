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
from purecaps.models.images import ImageNetwork
from purecaps.models.pcapsnet import PCapsNet
from purecaps.models.registry import get_entry
from purecaps.models.store import load_pretrained, pretrained_path


def models(
    pattern: Annotated[str | None, typer.Argument(help="Shell pattern of names.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """List the networks: parameters, multiply-adds, input and the pretrained error."""
    table = Table(box=None, pad_edge=False)
    for column in ("model", "parameters", "multiply-adds", "input", "pretrained error"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    names = list_models(pattern)
    if not names:
        raise unknown_name("model", pattern or "", list_models())
    for name in names:
        with torch.device("meta"):  # sizes only: the largest has 140 MB of weights
            network = create_model(name)
        count = sum(parameter.numel() for parameter in network.parameters())
        work = f"{network.multiply_adds():,}" if isinstance(network, PCapsNet | ImageNetwork) else "-"
        shape = "x".join(map(str, get_entry(name).in_shape))
        table.add_row(name, f"{count:,}", work, shape, _pretrained_error(name))
    out.print(table)


def _pretrained_error(name: str) -> str:
    if pretrained_path(name) is None:
        return "-"
    info = load_pretrained(name, None, 10, {})[1]
    return f"{info.record['test_error']:.2f} % {info.trained_on}"
