"""Options that several verbs share, and what they name: a trained network, a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from purecaps import data
from purecaps.cli.support import say
from purecaps.data import Dataset
from purecaps.data.specs import SPECS
from purecaps.errors import CheckpointError, ConfigError, DataError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models import ModelInfo
from purecaps.quant.network import KIND
from purecaps.tensorfile import kind_of
from purecaps.train import RunConfig, pick_device


def _check_seed(seed: int) -> int:
    RunConfig("", "", "", seed=seed)  # says what is allowed
    torch.manual_seed(seed)
    return seed


def _check_device(name: str) -> str:
    pick_device(name)
    return name


Seed = Annotated[int, typer.Option(help="Seed of everything random in the command.", callback=_check_seed)]
Device = Annotated[str, typer.Option(help="Where to compute: auto, cpu, cuda or mps.", callback=_check_device)]
Root = Annotated[
    Path | None,
    typer.Option(help="Folder of data sets; else $PURECAPS_DATA or the user's cache directory."),
]
Weights = Annotated[Path | None, typer.Option("--checkpoint", help="A run's folder or its model.safetensors.")]
DEFAULT_MODEL = "pcapsnet2"
PretrainedModel = Annotated[
    str | None,
    typer.Option("--model", help=f"A model with packaged weights; without --checkpoint either, {DEFAULT_MODEL}."),
]
# What --model takes anyway: for commands written before that.
Pretrained = Annotated[bool, typer.Option("--pretrained", hidden=True)]


def load_trained(checkpoint: Path | None, model: str | None) -> TrainedModel:
    """The network that the user named by a file or run folder, or by a model with packaged weights."""
    if checkpoint is not None and model is not None:
        raise ConfigError("--model: expected either --model or --checkpoint, got both")
    return TrainedModel.from_package(named_or_default(model)) if checkpoint is None else load_file(checkpoint)


def named_or_default(model: str | None) -> str:
    """The packaged model that the user named; else the default, which is told: it may not be the one that was meant."""
    if model is None:
        say(f"neither --model nor --checkpoint given: taking the packaged {DEFAULT_MODEL}")
    return model or DEFAULT_MODEL


def load_file(path: Path) -> TrainedModel:
    """The network in a weights file or run folder that the user named."""
    if path.is_file() and kind_of(path) == KIND:
        raise CheckpointError(
            f"{path}: expected a model file, got a quantised file, of 8-bit integers: `purecaps export c --int8` and "
            "`purecaps export onnx --int8` take it, and in Python purecaps.quant.QuantisedPCapsNet.load"
        )
    return TrainedModel.from_file(path)


def load_data_for(info: ModelInfo, source: str, root: Path | None) -> Dataset:
    """A data set as a network's input; a folder's images are resized to what it was trained on."""
    if not source:  # as a path it would mean the current folder
        raise ConfigError(
            f"--data: expected a data set or path, since the file of {info.name} does not say what it was trained on, "
            "got none; give --data"
        )
    if source == info.trained_on and source not in SPECS and not Path(source).exists():
        raise DataError(
            f"--data: expected the images that {info.name} was trained on in {source}, found none there; "
            "give --data with where they are now"
        )
    channels, height, width = info.image_shape
    folder = source not in SPECS and Path(source).is_dir()
    options: dict[str, Any] = {"image_size": (height, width), "channels": channels} if folder else {}
    dataset = data.load(source, root=root, **options)
    if dataset.class_names != info.class_names:
        raise DataError(
            f"--data: expected the classes {', '.join(info.class_names)}, as {info.name} was trained on, "
            f"got {', '.join(dataset.class_names)}"
        )
    return dataset
