"""Data sets by the name or path that a user types: loading them, and looking after the cache of the named."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from purecaps.data import cache, fetching
from purecaps.data.arrays import load_arrays
from purecaps.data.folder import load_folder
from purecaps.data.specs import SPECS, DatasetSpec
from purecaps.data.types import Dataset
from purecaps.errors import ConfigError, DataError, PurecapsError, UnknownNameError, unknown_name

_PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Status:
    """How a named data set stands in the cache.

    Args:
        name: the data set.
        about: one line on what it is.
        state: "ready", "absent" or "damaged".
        path: its folder in the cache, whether there or not.
        bytes: how much it takes on disk; 0 where it is not ready.
        source: where it was fetched from; empty where it is not ready.
        fault: what is wrong with it and how to mend that; empty where nothing is.
    """

    name: str
    about: str
    state: Literal["ready", "absent", "damaged"]
    path: Path
    bytes: int = 0
    source: str = ""
    fault: str = ""


def load(
    name: _PathLike,
    *,
    root: _PathLike | None = None,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
) -> Dataset:
    """Loads a data set; one that is known by name is fetched on its first use.

    A cache that turns out damaged is an error that says how to mend it; it is not fetched anew unasked.

    Args:
        name: a name from `list_datasets()`, or a path to a folder of images (see `load_folder`) or to an .npz
            or .safetensors file (see `load_arrays`). A name wins over a path; ./mnist is a path.
        root: where caches are kept; None is $PURECAPS_DATA or the user's cache directory.
        image_size: for a folder, the (H, W) that its images are stretched to; an int is a square.
        channels: for a folder, 1 for grey or 3 for RGB images.
    """
    asked, path = os.fspath(name), Path(name)
    if not asked:  # as a path, the working directory
        raise ConfigError("name: expected a data set's name or a path, got ''")
    if asked not in SPECS and path.is_dir():
        return load_folder(path, image_size=image_size, channels=channels)
    if asked not in SPECS and not path.exists():
        raise _unknown(asked)
    for option, value in (("image_size", image_size), ("channels", channels)):
        if value is not None:
            raise ConfigError(f"{option}: expected only with a folder of images, got {value} with {asked}")
    if asked not in SPECS:
        return load_arrays(path)
    folder = location(asked, root)
    if not cache.exists(folder):
        fetching.fetch(SPECS[asked], folder.parent)
    return cache.read(folder, SPECS[asked])


def list_datasets() -> list[str]:
    """The names that `load` knows, in alphabetical order."""
    return sorted(SPECS)


def location(name: str, root: _PathLike | None = None) -> Path:
    """The folder of a named data set in the cache, whether it is there or not."""
    return (cache.default_root() if root is None else Path(root)) / _spec(name).name


def status(name: str, root: _PathLike | None = None) -> Status:
    """How a named data set stands in the cache, by a quick look that hashes nothing."""
    spec, folder = _spec(name), location(name, root)
    if not cache.exists(folder):
        return Status(spec.name, spec.about, "absent", folder)
    try:
        manifest = cache.read_manifest(folder, spec)
    except DataError as fault:
        return Status(spec.name, spec.about, "damaged", folder, fault=str(fault))
    size = sum(part.bytes for part in manifest.parts)
    return Status(spec.name, spec.about, "ready", folder, size, manifest.source)


def fetch(name: str, root: _PathLike | None = None, *, force: bool = False) -> Status:
    """Brings a named data set into the cache, unless a sound one is there already.

    Args:
        name: the data set.
        root: where caches are kept; None is $PURECAPS_DATA or the user's cache directory.
        force: fetch it anew although it is there.
    """
    fetching.fetch(_spec(name), location(name, root).parent, force=force)
    return status(name, root)


def verify(name: str, root: _PathLike | None = None) -> tuple[str, ...]:
    """Hashes every byte of a cached data set: one line a fault, none where it is sound.

    Raises:
        DataError: it is not in the cache.
    """
    spec, folder = _spec(name), location(name, root)
    if not cache.exists(folder):
        raise DataError(f"{name} is not in the cache ({folder}); to fetch it: purecaps data fetch {name}")
    return cache.verify(folder, spec)


def _spec(name: str) -> DatasetSpec:
    if name not in SPECS:
        raise _unknown(name)
    return SPECS[name]


def _unknown(asked: str) -> PurecapsError:
    if Path(asked).name != asked or Path(asked).suffix:
        return DataError(f"{asked}: expected a folder of images or a file of arrays, found none there")
    return UnknownNameError(
        f"{unknown_name('data set', asked, SPECS)};"
        " a path to a folder of images, an .npz or a .safetensors file also works"
    )
