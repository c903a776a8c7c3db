"""`purecaps export`: c, onnx."""

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
)
from purecaps.cli.quantise import Int8, load_quantised, needs_images
from purecaps.cli.support import out, say
from purecaps.cli.targets import check_file, check_folder
from purecaps.data import Split
from purecaps.errors import ConfigError, PurecapsError
from purecaps.export.c import export_c
from purecaps.export.c_int8 import export_c_int8
from purecaps.export.onnx import export_onnx
from purecaps.export.onnx_int8 import export_onnx_int8
from purecaps.models import ModelInfo

app = typer.Typer(
    no_args_is_help=True,
    help="Write a trained network for other programs.",
    epilog="Example: purecaps export c --model pcapsnet2 --out pcapsnet2_c",
)


@app.command("c", epilog="Example: purecaps export c --model pcapsnet2 --out pcapsnet2_c")
def export_c_verb(
    *,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the C file and its header.")],
    name: Annotated[
        str | None,
        typer.Option(help="What files are called and symbols begin with.", show_default="the network's name"),
    ] = None,
    model: PretrainedModel = None,
    pretrained: Pretrained = False,
    checkpoint: Weights = None,
    int8: Int8 = False,
    data_name: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="With --int8, data set or path to quantise a run's network with; else what it was trained on.",
        ),
    ] = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """One C99 file and a header, with the weights inside: no allocation, no dependency but <math.h>."""
    check_folder("--out", out_dir)
    if data_name is not None and not (int8 and needs_images(checkpoint)):
        raise ConfigError(
            f"--data: expected it only with --int8 and a run's network, which images quantise, got {data_name!r} "
            "without; leave it out"
        )
    if int8:
        report = export_c_int8(load_quantised(checkpoint, model, data_name, root), out_dir, name=name)
    else:
        report = export_c(load_trained(checkpoint, model), out_dir, name=name)
    for path in (report.source, report.header):
        out.print(str(path), soft_wrap=True)
    out.print(
        f"constants {report.constant_bytes:,} bytes, static memory {report.ram_bytes:,} bytes, "
        f"{report.multiply_adds:,} multiply-adds an image"
    )


@app.command("onnx", epilog="Example: purecaps export onnx --model pcapsnet2 --out pcapsnet2.onnx")
def export_onnx_verb(
    *,
    path: Annotated[Path, typer.Option("--out", help="The ONNX file to write.")],
    model: PretrainedModel = None,
    pretrained: Pretrained = False,
    checkpoint: Weights = None,
    int8: Int8 = False,
    preprocessing: Annotated[
        bool, typer.Option("--preprocessing", help="Take raw uint8 images: scaling and crop inside the graph.")
    ] = False,
    data_name: Annotated[
        str | None,
        typer.Option(
            "--data",
            help="Data set or path to compare on, with --int8 also to quantise with; else what it was trained on.",
        ),
    ] = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """An ONNX file with a dynamic batch, compared with PyTorch on the test set before it is left there."""
    check_file("--out", path)
    if int8:
        network = load_quantised(checkpoint, model, data_name, root)
        test = _test_split(network.info, data_name, root)
        report = export_onnx_int8(network, path, preprocessing=preprocessing, test=test)
        found = "the same integers as PyTorch"
    else:
        trained = load_trained(checkpoint, model)
        test = _test_split(trained.info, data_name, root)
        report = export_onnx(trained, path, preprocessing=preprocessing, test=test)
        found = f"largest difference {report.max_difference:.1e}, {report.differing_predictions} differing predictions"
    out.print(f"{report.images:,} {'test' if report.real_images else 'random'} images: {found}")
    out.print(f"{report.path}: {report.bytes:,} bytes, opset {report.opset}", soft_wrap=True)


def _test_split(info: ModelInfo, data_name: str | None, root: Path | None) -> Split | None:
    """The test images of `data_name`, else of what a network was trained on; None where those are not to be had."""
    if data_name is not None:
        return load_data_for(info, data_name, root).test
    try:
        return load_data_for(info, info.trained_on, root).test
    except PurecapsError as error:
        say(f"{error}; comparing on random images instead")
        return None
