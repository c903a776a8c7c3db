"""The command line: one file a verb, each thin."""

from __future__ import annotations

import importlib
import io
import itertools
import os
import sys
from typing import Annotated, NoReturn

import torch
import typer

from purecaps._version import __version__
from purecaps.cli import data, export
from purecaps.cli.attack import attack
from purecaps.cli.bench import bench
from purecaps.cli.demo import demo
from purecaps.cli.evaluate import evaluate_verb
from purecaps.cli.models import models
from purecaps.cli.predict import predict
from purecaps.cli.quantise import quantise
from purecaps.cli.reproduce import reproduce
from purecaps.cli.support import INTERRUPTED, log_to_stderr, one_line_errors, out, say
from purecaps.cli.train import train
from purecaps.errors import ConfigError

__all__ = ["app", "main"]

# Options of paths, and of names that can be left out.
NAMED = (
    "--build",
    "--checkpoint",
    "--csv",
    "--data",
    "--json",
    "--model",
    "--out",
    "--plot",
    "--root",
    "--source",
    "--teacher",
    "--turns",
    "--work",
)

app = typer.Typer(
    name="purecaps",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Routing-free capsule networks: train, evaluate and use P-CapsNets.",
    epilog="Example: purecaps train --model pcapsnet2 --data mnist",
)
# In the order in which --help lists them.
app.command(epilog="Example: purecaps train --model pcapsnet2 --data mnist --device cpu")(train)
app.command("eval", epilog="Example: purecaps eval --model pcapsnet2 --data mnist --out results/")(evaluate_verb)
app.command(epilog="Example: purecaps predict digit.png --model pcapsnet2")(predict)
app.command(epilog="Example: purecaps attack --model pcapsnet2 --method pgd --eps 0.05,0.1 --limit 1000")(attack)
app.command(epilog="Example: purecaps reproduce table1 --only 'pcapsnet0-*' --time-limit 540")(reproduce)
app.command(epilog="Example: purecaps models 'pcapsnet*'")(models)
app.command(epilog="Example: purecaps bench --models pcapsnet2 --batches 128,1024 --modes train")(bench)
app.command(epilog="Example: purecaps demo")(demo)
app.command(epilog="Example: purecaps quantise --model pcapsnet2 --out pcapsnet2-int8.safetensors")(quantise)
app.add_typer(data.app, name="data")
app.add_typer(export.app, name="export")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # anywhere on the line
    log_to_stderr(debug)
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show is no reason to lose the rest.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with one_line_errors(debug):
        _refuse_empty(words)
        code = app([word for word in words if word != "--debug"], prog_name="purecaps", standalone_mode=False)
    if code == INTERRUPTED:  # what Typer makes of Ctrl-C, without a word
        say("interrupted")
    raise SystemExit(code or 0)


def _refuse_empty(words: list[str]) -> None:
    """Refuses an empty path or name, such as a variable of the shell that is not set.

    Later it could not be told from one that was typed: an empty path is the working directory.
    """
    pairs = [*itertools.pairwise(words), *(word.split("=", 1) for word in words if "=" in word)]
    for option, value in pairs:
        if option in NAMED and value == "":
            raise ConfigError(f"{option}: expected a path or a name, got ''")


def _print_version(asked: bool) -> None:
    if asked:
        out.print(f"purecaps {__version__} (torch {torch.__version__})")
        raise typer.Exit


def _import_modules(names: list[str]) -> None:
    """Imports what registers networks of the user's own, also from the current folder."""
    if names and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # last: a file there takes no installed module's place
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"--import: expected a module's name, such as my_models, got {name!r}")
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"--import: expected a module on Python's path or in the current folder, got {name!r}: {error}"
            ) from error


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    modules: Annotated[
        list[str] | None,
        typer.Option(
            "--import",
            metavar="MODULE",
            help="A module to import first, which registers networks of your own; repeatable, before the verb.",
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works after any verb.")] = False,
) -> None:
    """What every verb has; `main` takes --debug off the line before it gets here."""
    _import_modules(modules or [])
