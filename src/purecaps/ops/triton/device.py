"""Triton launches on the current device, which need not be the one that the tensors lie on."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def on_its_device(launch: Callable[P, R]) -> Callable[P, R]:
    """Makes the device of a launch's first argument, a tensor or a list of them, the current one meanwhile."""

    @functools.wraps(launch)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0]
        with torch.cuda.device_of(first if isinstance(first, torch.Tensor) else first[0]):  # on a CPU it does nothing
            return launch(*args, **kwargs)

    return guarded
