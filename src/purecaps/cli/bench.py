"""`purecaps bench`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from matplotlib.figure import Figure
from rich.table import Table

from purecaps.cli.options import Device, Seed
from purecaps.cli.support import out, say
from purecaps.cli.targets import check_file
from purecaps.errors import ConfigError, PurecapsError
from purecaps.evaluate.style import FORMATS, save
from purecaps.experiments import bench as benching
from purecaps.experiments.bench import contenders as contending
from purecaps.experiments.bench import plots, tables
from purecaps.experiments.bench.subjects import registered
from purecaps.files import write_json
from purecaps.provenance import versions
from purecaps.train import pick_device
from purecaps.train.recipe import PRECISIONS

FULL_MODELS = "pcapsnet0,pcapsnet2,pcapsnet4"
GROW_MODELS = "pcapsnet2,pcapsnet0"
FULL_BATCHES = {
    "forward": [32, 128, 1024, 4096],
    "train": [32, 128, 512, 1024, 4096],
    "inference": [1, 16, 128, 1024, 8192, 65536],
}
GROW_WAYS = {"cpu": ["conv", "cpu"], "cuda": ["conv graph", "triton graph"]}
WAYS = ", ".join(benching.CONTENDERS)


def bench(
    *,
    models: Annotated[str | None, typer.Option(help="P-CapsNets to time, with commas between.")] = None,
    modes: Annotated[str | None, typer.Option(help=f"What to time: {', '.join(benching.MODES)}.")] = None,
    batches: Annotated[str | None, typer.Option(help="Batch sizes, of all modes.")] = None,
    contenders: Annotated[
        str | None, typer.Option(help=f"Ways to run them: {WAYS}; on CUDA each also as a CUDA graph, 'conv graph'.")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Inference of 1 to 65,536 images, training of 32 to 4,096, three networks.")
    ] = False,
    grow: Annotated[
        str | None, typer.Option(help=f"Time growing networks instead, along {', '.join(benching.AXES)}.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help=f"Of float images: {', '.join(PRECISIONS)}; tf32 on CUDA, else fp32.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How often each is timed.")] = 10,
    budget: Annotated[float | None, typer.Option(help="Seconds after which nothing new is compiled.")] = None,
    turns: Annotated[
        Path | None, typer.Option(help="A lock file of several such commands: they compile at once and time in turns.")
    ] = None,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Append the rows to this CSV file.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the rows to this JSON file.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw the rows here.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Time ways to run a network side by side, behind a parity check and above a measured floor."""
    chosen = pick_device(device)
    settings = benching.Settings(
        chosen,
        precision or ("tf32" if chosen.type == "cuda" else "fp32"),
        rounds,
        math.inf if budget is None else budget,
        say,
        benching.Turns(turns),
    )
    check_file("--csv", csv_file)
    check_file("--json", json_file)
    check_file("--plot", picture, [f".{name}" for name in FORMATS])
    record = Keeper(chosen, csv_file, json_file)
    if grow is not None:
        _grow(grow, models, modes, batches, contenders, settings, record, picture)
        return
    report = benching.bench(
        [registered(name) for name in _names(models or (FULL_MODELS if full else "pcapsnet2"))],
        _batches(modes, batches, chosen, full),
        _ways(contenders, chosen) or contending.usual(chosen.type),
        settings,
        record,
    )
    _print_table(tables.HEADINGS, tables.lines(report.rows))
    _finish(report, picture, lambda: plots.plot(report.rows))


class Keeper:
    """Writes what has been found so far, so that a run that is stopped has left it.

    Args:
        device: for what the JSON file says of the machine.
        csv_file: where to add rows.
        json_file: where to write all of them.
    """

    def __init__(self, device: torch.device, csv_file: Path | None, json_file: Path | None) -> None:
        self.csv_file, self.json_file = csv_file, json_file
        self.about = versions(device)
        self.written = 0

    def __call__(self, report: benching.Report, **more: Any) -> None:
        if self.csv_file is not None:
            benching.append_csv(self.csv_file, report.rows[self.written :])
            self.written = len(report.rows)
        if self.json_file is not None:
            found = {"versions": self.about, **dataclasses.asdict(report), **more}
            write_json(self.json_file, found)


def _grow(
    axes: str,
    models: str | None,
    modes: str | None,
    batches: str | None,
    contenders: str | None,
    settings: benching.Settings,
    record: Keeper,
    picture: Path | None,
) -> None:
    kind = settings.device.type
    mode, sizes = _names(modes or "train"), _sizes(batches or ("128" if kind == "cuda" else "32"))
    for name, given in (("modes", mode), ("batches", sizes)):
        if len(given) != 1:
            raise ConfigError(f"--{name}: expected one with --grow, got {len(given)}")
    ways = _ways(contenders, settings.device) or contending.parse(GROW_WAYS[kind], kind)
    report, growths = benching.grow(
        _names(axes), _names(models or GROW_MODELS), mode[0], sizes[0], ways, settings, record
    )
    record(report, growth=[{**dataclasses.asdict(each), "exponent": each.exponent} for each in growths])
    for axis in dict.fromkeys((growth.axis, growth.values) for growth in growths):
        here = [growth for growth in growths if (growth.axis, growth.values) == axis]
        out.print(tables.growth_title(here[0]))
        _print_table(tables.growth_headings(here[0]), [tables.growth_line(growth) for growth in here])
        out.print()
    out.print(
        "exponent: e in cost ~ value^e, fitted to all; at the end: of the last two; of arithmetic: if nothing else"
    )
    _finish(report, picture, lambda: plots.plot_growth(growths))


def _finish(report: benching.Report, picture: Path | None, draw: Callable[[], Figure]) -> None:
    for line in (*tables.notes(report.rows), *tables.footer(report.rows, report.rates)):
        out.print(line, soft_wrap=True)
    if picture is not None:  # after all is said: what was measured is not lost with a full disk
        save(draw(), picture)
    if report.failures:
        raise PurecapsError(f"{len(report.failures)} not measured: {'; '.join(report.failures)}")


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in tables.TEXT_COLUMNS else "right", no_wrap=True)
    for line in rows:
        table.add_row(*line)
    out.print(table)


def _batches(modes: str | None, batches: str | None, device: torch.device, full: bool) -> dict[str, list[int]]:
    usual = {"forward": [128], "train": [128], "inference": [1, 128, 8192] if device.type == "cuda" else [1, 128]}
    named = _names(modes) if modes else list(benching.MODES)
    sizes = None if batches is None else _sizes(batches)
    return {mode: sizes or (FULL_BATCHES if full else usual).get(mode, [1]) for mode in named}


def _ways(names: str | None, device: torch.device) -> list[benching.Way]:
    return contending.parse(_names(names), device.type) if names else []


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _sizes(text: str) -> list[int]:
    try:
        return [int(size) for size in _names(text)]
    except ValueError as error:
        raise ConfigError(f"--batches: expected numbers with commas between, got {text!r}") from error
