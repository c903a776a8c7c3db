"""`purecaps train --resume`: the run that is in a folder, whose images may have moved since."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from purecaps import data
from purecaps.data import Dataset
from purecaps.data.specs import SPECS
from purecaps.errors import ConfigError, DataError
from purecaps.train import RunConfig
from purecaps.train.checkpoint import read_newest
from purecaps.train.loop import digest_of


def configure_again(
    out: Path, given: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[RunConfig, Dataset, str | None]:
    """The run in `out` as it was begun, its images, and where those are now if that is elsewhere.

    Args:
        out: the run's folder, with its config.json.
        given: the fields of `RunConfig` that the user gave; they must be the run's, but the images may have moved.
        overrides: the fields of its recipe that the user gave.
    """
    config = RunConfig.load(out / "config.json")
    moved = _moved(out, config, given.get("data", config.data))
    same = {**config.as_dict(), **config.recipe.as_dict(), **({} if moved is None else {"data": moved})}
    for name, value in {**given, **overrides}.items():
        if same[name] != value:
            option = {"options": "option"}.get(name, name.removesuffix("_name").replace("_", "-"))
            raise ConfigError(
                f"--{option}: expected {same[name]!r}, as the run in {out} was begun with, got {value!r}; "
                "leave it out or start another run"
            )
    if moved is None and config.data not in SPECS and not Path(config.data).exists():
        raise DataError(
            f"--data: expected the images that the run in {out} was begun with in {config.data}, found none there; "
            "give --data with where they are now"
        )
    dataset = data.load(moved or config.data, image_size=config.image_size, channels=config.channels)
    if moved is not None and digest_of(dataset.train) != _digest(out):
        raise DataError(
            f"--data: expected the training images that the run in {out} was begun with, those of {config.data}, "
            f"got others from {moved}; leave it out or start another run"
        )
    return config, dataset, moved


def _moved(out: Path, config: RunConfig, source: str) -> str | None:
    """The path that the user gave for the run's, where a checkpoint can tell whether the images are the same."""
    named = source in SPECS or config.data in SPECS
    return None if source == config.data or named or _digest(out) is None else source


def _digest(out: Path) -> str | None:
    """What the run in `out` knows its training images by; None where it has no checkpoint yet."""
    for folder in (out, *sorted(out.glob("seed-*"))):  # seeds in turn keep their checkpoints each
        if (found := read_newest(folder / "checkpoints")) is not None:
            return str(found[1]["data_digest"])
    return None
