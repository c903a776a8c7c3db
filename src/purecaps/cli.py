"""The command line: one function a verb, each thin."""

from __future__ import annotations

import io
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import typer
from rich.table import Table

from purecaps import data
from purecaps._version import __version__
from purecaps.cli_support import err, log_to_stderr, one_line_errors, out, parse_size, recipe_options, say
from purecaps.data import Dataset
from purecaps.data.specs import SPECS
from purecaps.errors import ConfigError, DataError, PurecapsError, unknown_name
from purecaps.evaluate import Result, evaluate, pictures
from purecaps.evaluate.trained import TrainedModel
from purecaps.experiments import bench as benching
from purecaps.experiments import run as runs
from purecaps.experiments.contenders import CONTENDERS
from purecaps.export.c import export_c
from purecaps.export.onnx import export_onnx
from purecaps.models import create_model, list_models
from purecaps.models.pcapsnet import PCapsNet
from purecaps.models.registry import get_entry
from purecaps.models.store import load_pretrained, pretrained_path
from purecaps.train import RunConfig, get_recipe, pick_device
from purecaps.train.log import ConsoleWatcher
from purecaps.train.loop import InterruptedRunError

app = typer.Typer(
    name="purecaps",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Routing-free capsule networks: train, evaluate and use P-CapsNets.",
    epilog="Example: purecaps train --model pcapsnet2 --data mnist",
)
data_app = typer.Typer(
    no_args_is_help=True,
    help="List, fetch, verify and locate data sets.",
    epilog="Example: purecaps data fetch mnist",
)
app.add_typer(data_app, name="data")
export_app = typer.Typer(
    no_args_is_help=True,
    help="Write a trained network for other programs.",
    epilog="Example: purecaps export c --model pcapsnet2 --out pcapsnet2_c",
)
app.add_typer(export_app, name="export")


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
PretrainedModel = Annotated[str | None, typer.Option("--model", help="A model with packaged weights.")]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line and exits."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words  # anywhere on the line
    log_to_stderr(debug)
    for stream in (sys.stdout, sys.stderr):
        # A name that the terminal cannot show is no reason to lose the rest.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with one_line_errors(debug):
        code = app([word for word in words if word != "--debug"], prog_name="purecaps", standalone_mode=False)
    raise SystemExit(code or 0)


def _print_version(asked: bool) -> None:
    if asked:
        out.print(f"purecaps {__version__} (torch {torch.__version__})")
        raise typer.Exit


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; works after any verb.")] = False,
) -> None:
    """What every verb has; `main` takes --debug off the line before it gets here."""


@app.command(epilog="Example: purecaps train --model pcapsnet2 --data mnist --device cpu")
@recipe_options
def train(
    *,
    model: Annotated[str | None, typer.Option(help="Model to train; see `purecaps models`.")] = None,
    data_name: Annotated[
        str | None,
        typer.Option("--data", help="Data set, or the path of a folder of images or an .npz file."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help="How to train: default, best, paper or authors.", show_default=False)
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder to write to; else a new one under runs/.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and transforms.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Train this many networks side by side, from --seed on.")] = None,
    device: Device = "auto",
    image_size: Annotated[str | None, typer.Option(help="Resize a folder's images: 28 or 28x32.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 (grey) or 3 (colour) for a folder.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs.")] = False,
    graph: Annotated[
        bool | None, typer.Option("--graph/--no-graph", help="Run each step as one CUDA graph; on where it can be.")
    ] = None,
    overrides: dict[str, Any],
) -> None:
    """Train a network, evaluate it on the test set and write a report.

    Options of the recipe that are not given stay as the recipe says. Ctrl-C saves; --resume goes on exactly
    where the run was.
    """
    chosen = pick_device(device)
    asked = {
        "model": model,
        "data": data_name,
        "recipe_name": recipe,
        "seed": seed,
        "seeds": seeds,
        "image_size": parse_size(image_size),
        "channels": channels,
    }
    config, dataset, folder = _configure(asked, overrides, out_dir, resume)
    name = f"{config.model} on {config.data}, recipe {config.recipe_name}, seed {config.seed}, {chosen}"
    say(f"{name}: {folder}")
    try:
        outcome = runs.run(
            config,
            dataset,
            folder,
            device=chosen,
            watcher=ConsoleWatcher(err),
            tensorboard=tensorboard,
            graph=graph,
            command=shlex.join(["purecaps", *sys.argv[1:]]),
            say=say,
        )
    except InterruptedRunError as stop:
        raise InterruptedRunError(
            f"{stop}; go on with: purecaps train --out {shlex.quote(str(folder))} --resume"
        ) from stop
    if config.seeds > 1:
        _print_seeds(config, outcome)
        return
    _print_result(outcome.results[0], config.data, dataset.class_names)
    out.print(f"weights: {folder / 'model.safetensors'}", soft_wrap=True)
    out.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    out.print(f"test error: {outcome.errors[0]:.2f} %")


def _print_seeds(config: RunConfig, outcome: runs.Outcome) -> None:
    for seed, error in zip(config.all_seeds, outcome.errors, strict=True):
        out.print(f"seed {seed}: {error:.2f} %")
    out.print(f"report: {outcome.out / 'report.html'}", soft_wrap=True)
    out.print(f"test error: {runs.mean_and_spread(outcome.errors)} ({config.seeds} seeds)")


def _configure(
    asked: dict[str, Any], overrides: dict[str, Any], out_dir: Path | None, resume: bool
) -> tuple[RunConfig, Dataset, Path]:
    """The run that the options mean, its data and its folder; with --resume, the run that is there."""
    given = {name: value for name, value in asked.items() if value is not None}
    source = given.get("data")
    if source is not None and source not in SPECS and Path(source).exists():
        given["data"] = str(Path(source).resolve())  # the run may be gone on with from another folder
    if resume and out_dir is None:
        raise ConfigError("--resume: expected --out DIR, the folder of the run to go on with, got none")
    saved = out_dir / "config.json" if out_dir is not None else None
    if resume and saved is not None and saved.is_file():
        config = RunConfig.load(saved)
        same = {**config.as_dict(), **config.recipe.as_dict()}
        for name, value in {**given, **overrides}.items():
            if same[name] != value:
                option = name.removesuffix("_name").replace("_", "-")
                raise ConfigError(
                    f"--{option}: expected {same[name]!r}, as the run in {out_dir} was begun with, got {value!r}; "
                    "leave it out or start another run"
                )
        return config, _load_data(config), saved.parent
    if saved is not None and saved.is_file():
        raise ConfigError(f"--out: expected a new folder, got {out_dir}, which holds a run; go on with it by --resume")
    config = RunConfig(**{"model": "pcapsnet2", "data": "mnist", "recipe_name": "default", **given})
    get_entry(config.model)
    dataset = _load_data(config)
    recipe = get_recipe(config.recipe_name, dataset).replace(**overrides)
    if resume:
        say(f"nothing to go on with in {out_dir}: starting at step 0")
    return replace(config, recipe=recipe), dataset, out_dir or _new_folder(config)


def _load_data(config: RunConfig) -> Dataset:
    return data.load(config.data, image_size=config.image_size, channels=config.channels)


def _new_folder(config: RunConfig) -> Path:
    stem = f"{config.model}-{Path(config.data).stem}-{config.recipe_name}-seed{config.seed}"
    number = 1
    while (folder := Path("runs") / (stem if number == 1 else f"{stem}-{number}")).exists():
        number += 1
    return folder


@app.command("eval", epilog="Example: purecaps eval --model pcapsnet2 --data mnist --out results/")
def evaluate_verb(
    *,
    model: PretrainedModel = None,
    checkpoint: Weights = None,
    data_name: Annotated[
        str | None, typer.Option("--data", help="Data set or path; else what the model was trained on.")
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Write confusion.png, worst.png and result.json here.")
    ] = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Error rate, per-class table and confusion matrix of a trained network on a test set."""
    chosen = pick_device(device)
    trained = _load_trained(checkpoint, model).to(chosen)
    source = data_name or trained.info.trained_on
    dataset = _load_data_for(trained, source, root)
    result = evaluate(trained.model, trained.batches(dataset.test), num_classes=trained.info.num_classes)
    _print_result(result, source, dataset.class_names)
    if out_dir is not None:
        runs.write_evaluation(out_dir, result, dataset, trained.info, chosen)
        out.print(f"written to {out_dir}", soft_wrap=True)
    out.print(f"test error: {result.error_rate:.2f} %")


def _load_trained(checkpoint: Path | None, model: str | None) -> TrainedModel:
    """The network that the user named by a file or run folder, or by a model with packaged weights."""
    if checkpoint is not None and model is not None:
        raise ConfigError("--model: expected either --model or --checkpoint, got both")
    return TrainedModel.from_package(model or "pcapsnet2") if checkpoint is None else TrainedModel.from_file(checkpoint)


def _load_data_for(trained: TrainedModel, source: str, root: Path | None) -> Dataset:
    """A data set as a network's input; a folder's images are resized to what it was trained on."""
    info = trained.info
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


@app.command(epilog="Example: purecaps predict digit.png --model pcapsnet2")
def predict(
    images: Annotated[list[Path], typer.Argument(help="Image files.")],
    *,
    model: PretrainedModel = None,
    checkpoint: Weights = None,
    invert: Annotated[
        bool, typer.Option("--invert", help="Swap dark and light: MNIST's digits are light on dark.")
    ] = False,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Print the class lengths of images, longest first."""
    chosen = pick_device(device)
    trained = _load_trained(checkpoint, model).to(chosen)
    for path in images:
        image = data.load_image(path, trained.info.image_shape, invert=invert)
        scores = trained.scores(image[None].to(chosen))[0].cpu()
        names = trained.info.class_names
        table = Table(title=str(path), title_justify="left", box=None, pad_edge=False)
        table.add_column("class")
        table.add_column("length", justify="right")
        table.add_column("")
        for index in scores.argsort(descending=True).tolist():
            length = float(scores[index])
            table.add_row(
                names[index],
                f"{length:.4f}",
                "█" * round(30 * length),
                style="bold" if index == int(scores.argmax()) else None,
            )
        out.print(table)


@app.command(epilog="Example: purecaps models 'pcapsnet*'")
def models(
    pattern: Annotated[str | None, typer.Argument(help="Shell pattern of names.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """List the networks: parameters, multiply-adds, input and the pretrained error."""
    table = Table(box=None, pad_edge=False)
    for column in ("model", "parameters", "multiply-adds", "input", "pretrained error"):
        table.add_column(column, justify="left" if column == "model" else "right", no_wrap=True)
    names = list_models(pattern)
    if not names:
        raise unknown_name("model", pattern or "", list_models())
    for name in names:
        network = create_model(name)
        count = sum(parameter.numel() for parameter in network.parameters())
        work = f"{network.multiply_adds():,}" if isinstance(network, PCapsNet) else "-"
        shape = "x".join(map(str, get_entry(name).in_shape))
        table.add_row(name, f"{count:,}", work, shape, _pretrained_error(name))
    out.print(table)


def _pretrained_error(name: str) -> str:
    if pretrained_path(name) is None:
        return "-"
    info = load_pretrained(name, None, 10, {})[1]
    return f"{info.record['test_error']:.2f} % {info.trained_on}"


@app.command(epilog="Example: purecaps bench --models pcapsnet2 --batches 128,1024 --modes train")
def bench(
    *,
    models: Annotated[str, typer.Option(help="P-CapsNets to time, with commas between.")] = "pcapsnet2",
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "128",
    modes: Annotated[str, typer.Option(help="train, inference or both.")] = "train,inference",
    contenders: Annotated[
        str, typer.Option(help=f"Ways to run them: {', '.join(CONTENDERS)}; those of other devices are left out.")
    ] = "conv,compile,gemm,triton,cnn",
    rounds: Annotated[int, typer.Option(help="How often each is timed, in turn.")] = 10,
    csv_file: Annotated[Path | None, typer.Option("--csv", help="Append the rows to this CSV file.")] = None,
    picture: Annotated[Path | None, typer.Option("--plot", help="Draw images/s against batch size here.")] = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Time ways to run a network side by side, behind a parity check."""
    try:
        sizes = [int(size) for size in batches.split(",")]
    except ValueError as error:
        raise ConfigError(f"--batches: expected numbers with commas between, got {batches!r}") from error
    rows = benching.bench(
        models.split(","),
        sizes,
        modes.split(","),
        contenders.split(","),
        device=pick_device(device),
        rounds=rounds,
        say=say,
    )
    if csv_file is not None:
        benching.append_csv(csv_file, rows)
    if picture is not None:
        pictures.save(benching.plot(rows), picture)
    table = Table(box=None, pad_edge=False)
    for position, heading in enumerate(benching.HEADINGS):
        table.add_column(heading, justify="left" if position in (0, 1, 3) else "right", no_wrap=True)
    for line in benching.table(rows):
        table.add_row(*line)
    out.print(table)
    out.print(f"{rows[0].hardware}, torch {rows[0].torch}; x conv: times faster than conv2d in this run")


Pretrained = Annotated[bool, typer.Option("--pretrained", help="The packaged weights; what --model takes anyway.")]


@export_app.command("c", epilog="Example: purecaps export c --model pcapsnet2 --pretrained --out pcapsnet2_c")
def export_c_verb(
    *,
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the C file and its header.")],
    model: PretrainedModel = None,
    pretrained: Pretrained = False,
    checkpoint: Weights = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """One C99 file and a header, with the weights inside: no allocation, no dependency but <math.h>."""
    report = export_c(_load_trained(checkpoint, model), out_dir)
    for path in (report.source, report.header):
        out.print(str(path), soft_wrap=True)
    out.print(
        f"weights {report.weight_bytes:,} bytes, static memory {report.ram_bytes:,} bytes, "
        f"{report.multiply_adds:,} multiply-adds an image"
    )


@export_app.command("onnx", epilog="Example: purecaps export onnx --model pcapsnet2 --pretrained --out pcapsnet2.onnx")
def export_onnx_verb(
    *,
    path: Annotated[Path, typer.Option("--out", help="The ONNX file to write.")],
    model: PretrainedModel = None,
    pretrained: Pretrained = False,
    checkpoint: Weights = None,
    preprocessing: Annotated[
        bool, typer.Option("--preprocessing", help="Take raw uint8 images: scaling and crop inside the graph.")
    ] = False,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """An ONNX file with a dynamic batch, compared with PyTorch on the test set before it is left there."""
    trained = _load_trained(checkpoint, model)
    try:
        test = _load_data_for(trained, trained.info.trained_on, root).test
    except PurecapsError as error:
        say(f"{error}; comparing on random images instead")
        test = None
    report = export_onnx(trained, path, preprocessing=preprocessing, test=test)
    out.print(
        f"{report.images:,} {'test' if report.real_images else 'random'} images: largest difference "
        f"{report.max_difference:.1e}, {report.differing_predictions} differing predictions"
    )
    out.print(f"{report.path}: {report.bytes:,} bytes, opset {report.opset}", soft_wrap=True)


@data_app.command("list", epilog="Example: purecaps data list")
def data_list(root: Root = None, seed: Seed = 0, device: Device = "auto") -> None:
    """List the data sets, what they hold and whether they are here."""
    table = Table(box=None, pad_edge=False)
    for column in ("data set", "state", "MB", "what it is"):
        table.add_column(column, no_wrap=column != "what it is")
    for name in data.list_datasets():
        row = data.status(name, root)
        table.add_row(name, row.state, f"{row.bytes / 1e6:.0f}" if row.bytes else "-", row.about)
    out.print(table)


Names = Annotated[list[str], typer.Argument(help="Data sets; see `purecaps data list`.")]


@data_app.command("fetch", epilog="Example: purecaps data fetch mnist cifar10")
def data_fetch(
    names: Names,
    force: Annotated[bool, typer.Option("--force", help="Fetch again what is here.")] = False,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Fetch data sets into the cache, checked by hash."""
    for name in names:
        data.fetch(name, root, force=force)
        out.print(f"{name}: {data.location(name, root)}", soft_wrap=True)


@data_app.command("verify", epilog="Example: purecaps data verify mnist")
def data_verify(names: Names, root: Root = None, seed: Seed = 0, device: Device = "auto") -> None:
    """Hash the cached files again and compare."""
    for name in names:
        faults = data.verify(name, root)
        if faults:
            raise DataError(f"{name}: {'; '.join(faults)}; mend it with: purecaps data fetch {name} --force")
        out.print(f"{name}: ok")


@data_app.command("where", epilog="Example: purecaps data where mnist")
def data_where(names: Names, root: Root = None, seed: Seed = 0, device: Device = "auto") -> None:
    """Print the folder of each data set."""
    for name in names:
        out.print(str(data.location(name, root)), soft_wrap=True)


def _print_result(result: Result, source: str, class_names: tuple[str, ...] | None = None) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("class", "images", "errors", "error %", "most confused with"):
        table.add_column(column, justify="left" if column in ("class", "most confused with") else "right")
    for row in result.per_class(class_names):
        rate = "-" if row.error_rate is None else f"{row.error_rate:.2f}"
        table.add_row(row.name, str(row.n), str(row.errors), rate, row.most_confused_with or "-")
    out.print(table)
    low, high = result.interval()
    out.print(f"{result.errors} of {len(result):,} wrong on {source} (95 % interval {low:.2f} to {high:.2f} %)")
