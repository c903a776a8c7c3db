"""What became of one way to run a case: times, or why there are none."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from purecaps.errors import ConfigError
from purecaps.experiments.bench.memory import out_of_memory
from purecaps.experiments.bench.parity import ParityError

log = logging.getLogger("purecaps.bench")
P = ParamSpec("P")
T = TypeVar("T")
LONGEST_REASON = 200


@dataclass(frozen=True)
class Measured:
    """Times in milliseconds, one a round; memory in MiB where it is known; what the record says besides."""

    times: tuple[float, ...]
    peak_mib: float | None
    kept_mib: float | None
    note: str


@dataclass(frozen=True)
class Unmeasured:
    """Why there is no measurement, and whether something is wrong with the contender."""

    reason: str
    failed: bool = False


def attempt(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | Unmeasured:
    """What a function gives, or why it gave nothing: one contender's trouble must not cost the others their rows.

    Args:
        function: what to try.
        args: its arguments.
    """
    try:
        return function(*args, **kwargs)
    except Exception as error:
        log.debug("%s", traceback.format_exc())
        if out_of_memory(error):
            return Unmeasured("out of memory")
        text = (str(error).strip() or "no message").splitlines()[0][:LONGEST_REASON]
        if isinstance(error, ConfigError):  # how an implementation refuses what it does not cover
            return Unmeasured(text)
        return Unmeasured(text if isinstance(error, ParityError) else f"{type(error).__name__}: {text}", failed=True)
