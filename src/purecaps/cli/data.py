"""`purecaps data`: list, fetch, verify, where."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from purecaps import data
from purecaps.cli.options import Device, Root, Seed
from purecaps.cli.support import out
from purecaps.errors import DataError

app = typer.Typer(
    no_args_is_help=True,
    help="List, fetch, verify and locate data sets.",
    epilog="Example: purecaps data fetch mnist",
)
Names = Annotated[list[str], typer.Argument(help="Data sets; see `purecaps data list`.")]


@app.command("list", epilog="Example: purecaps data list")
def data_list(root: Root = None, seed: Seed = 0, device: Device = "auto") -> None:
    """List the data sets, what they hold and whether they are here."""
    table = Table(box=None, pad_edge=False)
    for column in ("data set", "state", "MB", "what it is"):
        table.add_column(column, no_wrap=column != "what it is")
    for name in data.list_datasets():
        row = data.status(name, root)
        table.add_row(name, row.state, f"{row.bytes / 1e6:.0f}" if row.bytes else "-", row.about)
    out.print(table)


@app.command("fetch", epilog="Example: purecaps data fetch mnist cifar10")
def data_fetch(
    names: Names,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is here.")] = False,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Fetch data sets into the cache, checked by hash."""
    for name in names:
        data.fetch(name, root, force=force)
        out.print(f"{name}: {data.location(name, root)}", soft_wrap=True)


@app.command("verify", epilog="Example: purecaps data verify mnist")
def data_verify(names: Names, root: Root = None, seed: Seed = 0, device: Device = "auto") -> None:
    """Hash the cached files again and compare."""
    for name in names:
        faults = data.verify(name, root)
        if faults:
            raise DataError(f"{name}: {'; '.join(faults)}; mend it with: purecaps data fetch {name} --force")
        out.print(f"{name}: ok")


@app.command("where", epilog="Example: purecaps data where mnist")
def data_where(names: Names, root: Root = None, seed: Seed = 0, device: Device = "auto") -> None:
    """Print the folder of each data set."""
    for name in names:
        out.print(str(data.location(name, root)), soft_wrap=True)
