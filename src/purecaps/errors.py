"""The one exception family a user's mistake raises, and the helper that words it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PurecapsError(Exception):
    """A problem the user can mend. The command line prints it as one line, without a traceback."""


class DataError(PurecapsError):
    """A data set, image or file that cannot be used as it is."""


class CheckpointError(PurecapsError):
    """A checkpoint or weights file that cannot be used as it is."""


class ConfigError(PurecapsError, ValueError):
    """An option, argument or combination of them that makes no sense."""


class UnknownNameError(PurecapsError, KeyError):
    """A model, data set or recipe that does not exist."""

    def __str__(self) -> str:  # KeyError would print the message's repr
        return str(self.args[0])


def unknown_name(kind: str, got: object, known: Iterable[str]) -> UnknownNameError:
    """The error for a name that is not in `known`, with the nearest names first.

    Args:
        kind: what the name was to name, as the user calls it ("model", "data set").
        got: what was given for a name.
        known: the names that exist.
    """
    names = sorted(known)
    lower = {name.lower(): name for name in names}
    near = [lower[name] for name in difflib.get_close_matches(str(got).lower(), lower, n=3, cutoff=0.5)]
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UnknownNameError(f"unknown {kind} {got!r}: {hint}known: {', '.join(names)}")
