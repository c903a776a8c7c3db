"""What the verbs share: options made from a recipe's fields, and mistakes told in one line."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import inspect
import json
import logging
import sys
import time
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from purecaps.errors import ConfigError, PurecapsError, UnknownNameError
from purecaps.train.loop import InterruptedRunError
from purecaps.train.recipe import Recipe

# No markup: names of files and classes may have square brackets.
# Into a file or a pipe, tables are not cut at a width that nobody chose.
WIDE = 200
out = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDE)
err = Console(stderr=True, highlight=False, markup=False)

INTERRUPTED = 130
MOST_PIXELS = 4096
SECONDS_BETWEEN_LINES = 10


def say(text: str) -> None:
    """One line on stderr, as it is: paths are not styled, and not broken at the terminal's width."""
    err.print(text, soft_wrap=True)


@contextlib.contextmanager
def progress_bar(text: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with how many more are done: a bar on a terminal, elsewhere a plain line now and then.

    Args:
        text: what is counted.
        total: how many there will be.
    """
    if err.is_terminal:
        columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
        with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as bar:
            task = bar.add_task(text, total=total)
            yield lambda count: bar.advance(task, count)
        return
    done, said = 0, time.monotonic()

    def advance(count: int) -> None:
        nonlocal done, said
        done += count
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            say(f"{text}: {done:,} of {total:,}")

    yield advance


def recipe_options(function: Callable[..., None]) -> Callable[..., None]:
    """Gives a verb one option for every field of `Recipe`; those given arrive as the dict `overrides`."""
    hints = typing.get_type_hints(Recipe)
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.name != "overrides"]
    added = []
    for field in dataclasses.fields(Recipe):
        text = field.metadata["help"]
        annotation: Any = Annotated[_given_type(hints[field.name]), typer.Option(help=text, show_default=False)]
        added.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

    def verb(**values: Any) -> None:
        overrides = {p.name: values.pop(p.name) for p in added}
        function(**values, overrides=given(overrides))

    verb.__doc__ = function.__doc__
    verb.__name__ = function.__name__
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
    verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    verb.__annotations__ = {p.name: p.annotation for p in parameters}
    return verb


def given(overrides: dict[str, Any]) -> dict[str, Any]:
    """Only the options that were given; `--augment none` and `--squash-chunk 0` stand for none at all."""
    values = {name: value for name, value in overrides.items() if value not in (None, [])}
    if values.get("squash_chunk") == 0:
        values["squash_chunk"] = None
    if "augment" in values:
        values["augment"] = () if values["augment"] == ["none"] else tuple(values["augment"])
    if "milestones" in values:
        values["milestones"] = tuple(values["milestones"])
    return values


def _given_type(hint: Any) -> Any:
    """The option's type for a field's: optional, so that one not given can be told from one that was."""
    if typing.get_origin(hint) is tuple:
        return list[typing.get_args(hint)[0]] | None  # type: ignore[misc]
    return hint if isinstance(hint, types.UnionType) else hint | None


def parse_size(text: str | None) -> tuple[int, int] | None:
    """ "28" or "28x32" as (height, width)."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) not in (1, 2) or not all(part.isdecimal() and 0 < int(part) <= MOST_PIXELS for part in parts):
        raise ConfigError(f"--image-size: expected a size such as 28 or 28x32, up to {MOST_PIXELS}, got {text!r}")
    return (int(parts[0]), int(parts[-1]))


def parse_options(words: Sequence[str] | None) -> dict[str, Any] | None:
    """["pool=max", "dropout=0.5"] as {"pool": "max", "dropout": 0.5}: a value is JSON where it can be, else text."""
    if not words:
        return None
    options: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name.isidentifier() or name in options:
            raise ConfigError(f"--option: expected name=value, such as pool=max, each name once, got {word!r}")
        try:
            options[name] = json.loads(text, parse_constant=_no_constant)
        except ValueError:
            options[name] = text
    return options


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and the like are no JSON, and NaN is not even equal to itself


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a device or the machine had no memory left; a CPU's allocator and Apple's say so in words only."""
    words = ("DefaultCPUAllocator", "out of memory")
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(each in str(error) for each in words)
    )


@contextlib.contextmanager
def one_line_errors(debug: bool) -> Iterator[None]:
    """Turns a user's mistake into one line on stderr and a non-zero exit; a bug keeps its traceback."""
    try:
        yield
    except InterruptedRunError as error:
        if debug:
            raise
        say(str(error))
        raise SystemExit(INTERRUPTED) from error
    except PurecapsError as error:
        if debug:
            raise
        own = isinstance(error, UnknownNameError) and str(error).startswith("unknown model")
        hint = "; one of your own is known after --import MODULE, before the verb" if own else ""
        say(f"purecaps: error: {error}{hint}")
        raise SystemExit(1) from error
    except OSError as error:
        # A full disk, or a path that is no folder or may not be written to, is the user's to mend, not a bug.
        if debug or (error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT)):
            raise
        say(f"purecaps: error: {error.filename or 'writing'}: {error.strerror}")
        raise SystemExit(1) from error
    except OverflowError as error:
        if debug:
            raise
        say(f"purecaps: error: a number is too large: {error}")
        raise SystemExit(1) from error
    except Exception as error:
        if is_out_of_memory(error) and not debug:
            say("purecaps: error: out of memory")
            raise SystemExit(1) from error
        # Typer's own errors (an unknown option, a word where a number should be); their class moves between versions.
        if debug or not hasattr(error, "format_message"):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # type: ignore[attr-defined]
        else:
            say(f"purecaps: error: {error.format_message()} (see --help)")
        raise SystemExit(getattr(error, "exit_code", 2)) from error
    except KeyboardInterrupt:
        err.print("interrupted")
        raise SystemExit(INTERRUPTED) from None


class _OneLine(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"{record.levelname.lower()}: {record.getMessage()}")


def log_to_stderr(debug: bool) -> None:
    logger = logging.getLogger("purecaps")
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    if not any(isinstance(handler, _OneLine) for handler in logger.handlers):
        logger.addHandler(_OneLine())
