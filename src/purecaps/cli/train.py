"""`purecaps train`."""

from __future__ import annotations

import contextlib
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from purecaps import data
from purecaps.cli.acting import require_acting
from purecaps.cli.going_on import configure_again
from purecaps.cli.options import DEFAULT_MODEL, Device
from purecaps.cli.support import (
    err,
    is_out_of_memory,
    out,
    parse_options,
    parse_size,
    progress_bar,
    recipe_options,
    say,
)
from purecaps.cli.tables import print_result
from purecaps.cli.targets import check_folder
from purecaps.data import Dataset
from purecaps.data.specs import SPECS
from purecaps.errors import ConfigError, PurecapsError, unknown_name
from purecaps.evaluate.trained import weights_file
from purecaps.experiments import run as runs
from purecaps.experiments.run_folder import held, holds_run
from purecaps.models.registry import get_entry, takes_option
from purecaps.train import RECIPES, RunConfig, get_recipe, pick_device
from purecaps.train.log import ConsoleWatcher
from purecaps.train.loop import InterruptedRunError
from purecaps.train.recipes import FOR_LOGITS
from purecaps.train.teacher import is_packaged, load_teacher


@recipe_options
def train(
    context: typer.Context,
    *,
    model: Annotated[
        str | None, typer.Option(help=f"Model to train, else {DEFAULT_MODEL}; see `purecaps models`.")
    ] = None,
    data_name: Annotated[
        str | None,
        typer.Option("--data", help="Data set, or the path of a folder of images or an .npz file; else mnist."),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(help=f"How to train: {', '.join(RECIPES)}; else what suits the model.")
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="Folder to write to; else a new one under runs/.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, order and transforms.")] = None,
    seeds: Annotated[int | None, typer.Option(help="Train this many networks, from --seed on.")] = None,
    teacher: Annotated[
        str | None,
        typer.Option(help="A trained network to learn from too: a run's folder, weights file or packaged model."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Build the network with this too, such as pool=max; repeatable."),
    ] = None,
    device: Device = "auto",
    image_size: Annotated[str | None, typer.Option(help="Resize a folder's images: 28 or 28x32.")] = None,
    channels: Annotated[int | None, typer.Option(help="1 (grey) or 3 (colour) for a folder.")] = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Also write TensorBoard logs.")] = False,
    graph: Annotated[
        bool | None, typer.Option("--graph/--no-graph", help="Run each step as one CUDA graph; on where it can be.")
    ] = None,
    compile_step: Annotated[
        bool, typer.Option("--compile", help="torch.compile network and loss: for networks without kernels of ours.")
    ] = False,
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
        "teacher": None if teacher is None else _teacher(teacher),
        "options": parse_options(option),
    }
    check_folder("--out", out_dir)
    with contextlib.ExitStack() as stack:
        if out_dir is not None:  # before it is looked at: another process could be at it
            stack.enter_context(held(out_dir))
        config, dataset, moved = _configure(asked, overrides, out_dir, resume)
        folder = out_dir or stack.enter_context(held(_usual_folder(config), new=True))
        name = f"{config.model} on {moved or config.data}, recipe {config.recipe_name}, seed {config.seed}, {chosen}"
        say(f"{name}: {folder}")
        outcome = _run(
            config,
            dataset,
            folder,
            again=_command_again(context, folder),
            images_from=moved,
            device=chosen,
            watcher=ConsoleWatcher(err),
            tensorboard=tensorboard,
            graph=graph,
            compile=compile_step,
            teacher=None if config.teacher is None else load_teacher(config.teacher, config.recipe)[0],
            command=shlex.join(["purecaps", *sys.argv[1:]]),
            say=say,
            bar=progress_bar,
        )
    if config.seeds > 1:
        _print_seeds(config, outcome)
        return
    print_result(outcome.results[0], moved or config.data, dataset.class_names)
    out.print(f"weights: {folder / 'model.safetensors'}", soft_wrap=True)
    out.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    out.print(f"test error: {outcome.errors[0]:.2f} %")


def _command_again(context: typer.Context, folder: Path) -> str:
    """The command that goes on with the run; a network of the user's own is not there without its module."""
    modules = context.find_root().params["modules"] or []
    words = [word for name in modules for word in ("--import", name)]
    return shlex.join(["purecaps", *words, "train", "--out", str(folder), "--resume"])


def _run(config: RunConfig, dataset: Dataset, folder: Path, *, again: str, **options: Any) -> runs.Outcome:
    """The run; where it is stopped, with the command that goes on with it."""
    go_on = f"go on with: {again}"
    try:
        return runs.run(config, dataset, folder, **options)
    except InterruptedRunError as stop:
        raise InterruptedRunError(f"{stop}; {go_on}") from stop
    except KeyboardInterrupt as stop:  # before or after the steps, where nothing waits for them to end
        if not (folder / "config.json").is_file():
            raise
        raise InterruptedRunError(f"stopped; {go_on}") from stop
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        size = config.recipe.batch_size
        raise PurecapsError(f"out of memory: try a lower --batch-size than {size}") from error


def _print_seeds(config: RunConfig, outcome: runs.Outcome) -> None:
    for seed, error in zip(config.all_seeds, outcome.errors, strict=True):
        out.print(f"seed {seed}: {error:.2f} %")
    out.print(f"report: {outcome.out / 'report.html'}", soft_wrap=True)
    out.print(f"test error: {runs.mean_and_spread(outcome.errors)} ({config.seeds} seeds)")


def _configure(
    asked: dict[str, Any], overrides: dict[str, Any], out_dir: Path | None, resume: bool
) -> tuple[RunConfig, Dataset, str | None]:
    """The run that the options mean, its data and where those are if moved; with --resume, the run that is there."""
    given = {name: value for name, value in asked.items() if value is not None}
    source = given.get("data")
    if source is not None and source not in SPECS and Path(source).exists():
        given["data"] = str(Path(source).resolve())  # the run may be gone on with from another folder
    if resume and out_dir is None:
        raise ConfigError("--resume: expected --out DIR, the folder of the run to go on with, got none")
    saved = out_dir / "config.json" if out_dir is not None else None
    if resume and saved is not None and saved.is_file():
        return configure_again(saved.parent, given, overrides)
    if out_dir is not None and not resume and holds_run(out_dir):
        raise ConfigError(f"--out: expected a new folder, got {out_dir}, which holds a run; go on with it by --resume")
    if resume and out_dir is not None and "model" not in given and not holds_run(out_dir):
        raise ConfigError(
            f"--resume: expected the folder of a run in --out, got {out_dir}, which holds none; --model begins one"
        )
    entry = get_entry(given.setdefault("model", DEFAULT_MODEL))
    config = RunConfig(**{"data": "mnist", "recipe_name": entry.recipe, **given})
    if config.recipe_name not in RECIPES:
        raise unknown_name("recipe", config.recipe_name, RECIPES)
    if entry.recipe in FOR_LOGITS and config.recipe_name not in FOR_LOGITS:
        raise ConfigError(
            f"--recipe: expected {' or '.join(FOR_LOGITS)} for {config.model}, whose scores are logits, "
            f"got {config.recipe_name!r}, which is for capsule networks"
        )
    if _for_logits(config.recipe_name) and not _for_logits(entry.recipe):
        raise ConfigError(
            f"--recipe: expected one for capsule networks, such as {entry.recipe}, for {config.model}, whose scores "
            f"are lengths, got {config.recipe_name!r}, which is for logits"
        )
    dataset = data.load(config.data, image_size=config.image_size, channels=config.channels)
    recipe = get_recipe(config.recipe_name, dataset).replace(**overrides)
    if recipe.init is not None and "init" not in overrides and not takes_option(config.model, "init"):
        say(f"{config.model} has no option init: its weights begin as it makes them, not as the recipe says")
        recipe = recipe.replace(init=None)
    require_acting(recipe, overrides)
    if resume and out_dir is not None and not holds_run(out_dir):
        say(f"nothing to go on with in {out_dir}: starting at step 0")
    return replace(config, recipe=recipe), dataset, None


def _for_logits(name: str) -> bool:
    """Whether a recipe takes scores as they are; the softmax of lengths, all in [0, 1), learns next to nothing."""
    recipe = RECIPES[name]
    return recipe.loss == "cross_entropy" and recipe.scale == 1


def _teacher(text: str) -> str:
    """A packaged model's name, or the file that a path means: absolute, as the run may be gone on with elsewhere."""
    if is_packaged(text):
        return text
    return str(weights_file(Path(text)).resolve())


def _usual_folder(config: RunConfig) -> Path:
    return Path("runs") / f"{config.model}-{Path(config.data).stem}-{config.recipe_name}-seed{config.seed}"
