"""`purecaps quantise`, and how other verbs find a network in 8-bit integers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purecaps.cli.options import (
    Device,
    Pretrained,
    PretrainedModel,
    Root,
    Seed,
    Weights,
    load_data_for,
    load_trained,
    named_or_default,
)
from purecaps.cli.support import err, out, say
from purecaps.cli.targets import check_file
from purecaps.errors import ConfigError
from purecaps.experiments.quantising import compare
from purecaps.quant import QuantisedPCapsNet, calibration_images
from purecaps.quant import quantise as to_integers
from purecaps.quant.network import KIND
from purecaps.quant.training import LR, STEPS
from purecaps.tensorfile import kind_of
from purecaps.train import pick_device
from purecaps.train.log import ConsoleWatcher

Int8 = Annotated[
    bool,
    typer.Option("--int8", help="In 8-bit integers; --checkpoint may then also be a file of `purecaps quantise`."),
]


def quantise(
    *,
    path: Annotated[Path, typer.Option("--out", help="The safetensors file to write.")],
    model: PretrainedModel = None,
    pretrained: Pretrained = False,
    checkpoint: Weights = None,
    data_name: Annotated[
        str | None, typer.Option("--data", help="Data set or path; else what the model was trained on.")
    ] = None,
    qat: Annotated[
        bool, typer.Option("--qat", help="Train on with the rounding in it first: quantisation-aware training.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help=f"With --qat: how many steps; else {STEPS}.")] = None,
    lr: Annotated[float | None, typer.Option(help=f"With --qat: learning rate; else {LR:g}.")] = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Turn a P-CapsNet into one of 8-bit weights and activations, and say what it loses."""
    for name, value in (("--steps", steps), ("--lr", lr)):
        if value is not None and not qat:
            raise ConfigError(f"{name}: expected it with --qat only, got {value:g} without; add --qat")
        if value is not None and value <= 0:
            raise ConfigError(f"{name}: expected a number above 0, got {value:g}")
    check_file("--out", path)
    trained = load_trained(checkpoint, model)
    dataset = load_data_for(trained.info, data_name or trained.info.trained_on, root)
    found = compare(
        trained,
        dataset,
        aware_steps=(steps or STEPS) if qat else 0,
        lr=lr or LR,
        seed=seed,
        device=pick_device(device) if qat else "cpu",
        watcher=ConsoleWatcher(err),
    )
    found.network.save(path)
    out.print(f"{found.images:,} test images: {found.differing} told differently")
    out.print(
        f"{path}: {path.stat().st_size:,} bytes, of which weights and tables {found.network.constant_bytes:,}",
        soft_wrap=True,
    )
    out.print(f"test error: {found.float_error:.2f} % in float, {found.error:.2f} % in 8-bit integers")


def load_quantised(
    checkpoint: Path | None, model: str | None, data_name: str | None, root: Path | None
) -> QuantisedPCapsNet:
    """The network that the user named, in 8-bit integers.

    A packaged model and a file of `purecaps quantise` are read as they are; a run's network is quantised here, with
    training images of `data_name`, or else of what it was trained on.
    """
    if checkpoint is not None and model is not None:
        raise ConfigError("--model: expected either --model or --checkpoint, got both")
    if checkpoint is None:
        return QuantisedPCapsNet.from_package(named_or_default(model))
    if not needs_images(checkpoint):
        return QuantisedPCapsNet.load(checkpoint)
    trained = load_trained(checkpoint, None)
    images = calibration_images(load_data_for(trained.info, data_name or trained.info.trained_on, root))
    say(f"quantising, with {len(images):,} training images; `purecaps quantise` also says what is lost")
    return to_integers(trained, images)


def needs_images(checkpoint: Path | None) -> bool:
    """Whether the network that the user named is yet to be quantised, which takes training images."""
    return checkpoint is not None and not (checkpoint.is_file() and kind_of(checkpoint) == KIND)
