"""Networks by name: a model's name is its configuration."""

from __future__ import annotations

import fnmatch
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from purecaps.errors import ConfigError, unknown_name

Builder = Callable[..., nn.Module]


class UnknownOptionError(ConfigError):
    """A network was asked for with an option that it does not have."""

    def __init__(self, model: str, option: str) -> None:
        super().__init__(f"{model}: has no option {option!r}")
        self.option = option


@dataclass(frozen=True)
class Entry:
    """A registered network.

    Args:
        name: what `create_model` calls it.
        build: the function that builds it, from `in_shape`, `num_classes` and overrides.
        in_shape: the image shape it was made for.
        summary: one line for the model table.
        recipe: the recipe that trains it where none is named.
        comparison: whether it is only there to compare another network with.
    """

    name: str
    build: Builder
    in_shape: tuple[int, int, int]
    summary: str
    recipe: str = "default"
    comparison: bool = False


_ENTRIES: dict[str, Entry] = {}


def register_model(
    *, in_shape: tuple[int, int, int], recipe: str = "default", comparison: bool = False
) -> Callable[[Builder], Builder]:
    """Registers the decorated function under its own name; its docstring's first line is the summary.

    Args:
        in_shape: the image shape that the network was made for.
        recipe: the recipe that trains it where none is named.
        comparison: whether it is only there to compare another network with.
    """

    def add(build: Builder) -> Builder:
        name = build.__name__
        if name in _ENTRIES:
            raise ConfigError(f"name: expected a new model name, got {name!r}")
        summary = (inspect.getdoc(build) or "").split("\n")[0]
        _ENTRIES[name] = Entry(name, build, in_shape, summary, recipe, comparison)
        return build

    return add


def takes_option(name: str, option: str) -> bool:
    """Whether a network can be built with an option, by what its builder says of itself."""
    parameters = inspect.signature(get_entry(name).build).parameters
    return option in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def list_models(pattern: str | None = None) -> list[str]:
    """Names of the registered networks, in order.

    Args:
        pattern: a shell pattern such as "pcapsnet2*". Without one, networks that only serve comparisons are left out.
    """
    if pattern is None:
        return sorted(name for name, entry in _ENTRIES.items() if not entry.comparison)
    return sorted(name for name in _ENTRIES if fnmatch.fnmatch(name, pattern))


def get_entry(name: str) -> Entry:
    if name not in _ENTRIES:
        raise unknown_name("model", name, _ENTRIES)
    return _ENTRIES[name]


def build_model(
    name: str, in_shape: tuple[int, int, int] | None, num_classes: int, overrides: dict[str, Any]
) -> nn.Module:
    entry = get_entry(name)
    shape: object = in_shape or entry.in_shape
    if isinstance(shape, list):  # networks compare it with an image's, which is a tuple
        shape = tuple(shape)
    try:
        return entry.build(in_shape=shape, num_classes=num_classes, **overrides)
    except TypeError as error:
        # Python's message for a wrong keyword names the builder, not the option's owner.
        if "keyword argument" not in str(error) and "multiple values" not in str(error):
            raise
        wrong = str(error).rsplit("'", 2)[-2]
        raise UnknownOptionError(name, wrong) from error
