"""`purecaps attack`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from torch import nn

from purecaps import provenance
from purecaps.cli.options import (
    Device,
    Pretrained,
    PretrainedModel,
    Root,
    Seed,
    Weights,
    load_data_for,
    load_file,
    load_trained,
)
from purecaps.cli.support import out, progress_bar, say
from purecaps.cli.targets import check_folder
from purecaps.data import Dataset
from purecaps.errors import ConfigError, unknown_name
from purecaps.evaluate.attacks import (
    Attack,
    AttackLoss,
    AttackResult,
    by_fgsm,
    by_noise,
    by_pgd,
    by_universal,
    default_loss,
    measure,
    train_universal,
)
from purecaps.evaluate.attacks.gradient import check_eps
from purecaps.evaluate.attacks.loss import LOSSES
from purecaps.evaluate.attacks.pgd import PGD_STEPS
from purecaps.evaluate.attacks.picture import attack_picture
from purecaps.evaluate.attacks.uap import AIMS, UAP_STEPS
from purecaps.evaluate.style import save
from purecaps.evaluate.trained import TrainedModel
from purecaps.files import write_json
from purecaps.malloc import keep_freed_memory
from purecaps.train import pick_device
from purecaps.train.teacher import is_packaged

STEPS = {"fgsm": 1, "pgd": PGD_STEPS, "uap": UAP_STEPS, "noise": 1}  # of each method, where none are given

# The methods that an option is for; those that are not here are for all.
OF_METHODS = {"steps": ("pgd", "uap"), "restarts": ("pgd",), "aim": ("uap",), "source": ("fgsm", "pgd", "uap")}


def attack(
    *,
    model: PretrainedModel = None,
    pretrained: Pretrained = False,
    checkpoint: Weights = None,
    data_name: Annotated[
        str | None, typer.Option("--data", help="Data set or path; else what the model was trained on.")
    ] = None,
    method: Annotated[
        str,
        typer.Option(
            help="fgsm (one step), pgd (many), uap (one perturbation for all images) or noise (random signs: what is "
            "left without any attack)."
        ),
    ] = "fgsm",
    eps: Annotated[
        str, typer.Option(help="The most that a pixel of [0, 1] may change; several with commas between.")
    ] = "0.05,0.1,0.15,0.2,0.25,0.3",
    source: Annotated[
        str | None,
        typer.Option(help="Black box: take the gradients of this run, weights file or packaged model instead."),
    ] = None,
    loss: Annotated[str, typer.Option(help=f"What the attack drives: {', '.join(LOSSES)}.")] = "cross_entropy",
    steps: Annotated[
        int | None,
        typer.Option(help=f"pgd: steps on each image, else {PGD_STEPS}; uap: training steps, else {UAP_STEPS}."),
    ] = None,
    restarts: Annotated[
        int | None, typer.Option(help="pgd: random places to begin at, the worst counts; else 1.")
    ] = None,
    aim: Annotated[
        str | None, typer.Option(help="uap: next (the class after the true one, as in the paper), or any wrong class.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Take this many test images, the first ones; else all.")] = None,
    out_dir: Annotated[Path | None, typer.Option("--out", help="Write attack.json and attack.png here.")] = None,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Accuracy under adversarial perturbations of the test images, against their size."""
    chosen = pick_device(device)
    if chosen.type == "cpu":
        keep_freed_memory()
    sizes = _parse_eps(eps)
    if method not in STEPS:
        raise unknown_name("method", method, STEPS)
    if limit is not None and limit < 1:
        raise ConfigError(f"--limit: expected an int >= 1, got {limit}")
    given = {"steps": steps, "restarts": restarts, "aim": aim, "source": source}
    for option, methods in OF_METHODS.items():
        if given[option] is not None and method not in methods:
            raise ConfigError(
                f"--{option}: expected it with {' or '.join(methods)}, got it with {method}: {given[option]}"
            )
    check_folder("--out", out_dir)
    trained = load_trained(checkpoint, model).to(chosen)
    substitute = None if source is None else _load_source(source, trained).to(chosen)
    name = data_name or trained.info.trained_on
    dataset = load_data_for(trained.info, name, root)
    target = trained.on_unit_pixels()
    giver = target if substitute is None else substitute.on_unit_pixels()
    chosen_loss = default_loss(giver, loss)
    gradients = "its own gradients" if substitute is None else f"the gradients of {substitute.info.name}"
    how = "random signs" if method == "noise" else f"{method} by {gradients}, {chosen_loss}"
    title = f"{trained.info.name} on {Path(name).name}: {how}"
    say(title)
    steps = STEPS[method] if steps is None else steps
    own: dict[str, dict[str, Any]] = {
        "pgd": {"restarts": 1 if restarts is None else restarts},
        "uap": {"aim": AIMS[0] if aim is None else aim},
    }
    options = own.get(method, {})
    made = _prepare(method, giver, dataset, sizes, chosen_loss, steps, seed, options)
    images, labels = dataset.test.images[:limit], dataset.test.labels[:limit]
    with progress_bar("images", len(images) * len(sizes)) as progress:
        result = measure(target, images, labels, made, progress=progress)
    _print(result)
    if out_dir is not None:
        about = {
            "model": trained.info.name,
            "source": None if substitute is None else substitute.info.name,
            "data": dataset.name,
            "method": method,
            "loss": None if method == "noise" else str(chosen_loss),
            "steps": steps,
            **options,
            "seed": seed,
            "command": shlex.join(["purecaps", *sys.argv[1:]]),
            "versions": provenance.versions(chosen),
        }
        write_json(out_dir / "attack.json", {**about, **result.as_dict()})
        save(attack_picture(result, dataset.class_names, title=title), out_dir / "attack.png")
        out.print(f"written to {out_dir}", soft_wrap=True)
    last = result.points[-1]
    out.print(f"accuracy: {result.clean.accuracy:.2f} % clean, {last.accuracy:.2f} % at eps {last.eps:g}")


def _parse_eps(text: str) -> list[float]:
    try:
        sizes = [float(part) for part in text.split(",")]
    except ValueError as error:
        raise ConfigError(f"--eps: expected numbers with commas between, got {text!r}") from error
    for size in sizes:
        check_eps(size)
    return list(dict.fromkeys(sizes))  # each once, in the order given


def _load_source(text: str, target: TrainedModel) -> TrainedModel:
    """The substitute that the user named; it must see the same images and tell the same classes apart."""
    found = TrainedModel.from_package(text) if is_packaged(text) else load_file(Path(text))
    for what, own, theirs in (
        ("images", target.info.image_shape, found.info.image_shape),
        ("classes", target.info.class_names, found.info.class_names),
    ):
        if own != theirs:
            expected, got = (", ".join(map(str, values)) for values in (own, theirs))
            raise ConfigError(f"--source: expected a network of {what} {expected}, as the attacked one, got {got}")
    return found


def _prepare(
    method: str,
    source: nn.Module,
    dataset: Dataset,
    sizes: Sequence[float],
    loss: AttackLoss,
    steps: int,
    seed: int,
    options: dict[str, Any],
) -> Attack:
    if method == "noise":
        return by_noise(source, sizes, seed=seed)
    if method == "fgsm":
        return by_fgsm(source, sizes, loss=loss)
    if method == "pgd":
        return by_pgd(source, sizes, steps=steps, seed=seed, loss=loss, **options)
    with progress_bar("training perturbations, steps", steps * len(sizes)) as progress:
        return by_universal(
            source,
            {
                size: train_universal(
                    source,
                    dataset.train.images,
                    dataset.train.labels,
                    size,
                    steps=steps,
                    seed=seed,
                    loss=loss,
                    progress=progress,
                    **options,
                )
                for size in sizes
            },
        )


def _print(result: AttackResult) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("eps", "accuracy %", "95 % interval", "right", "images", "unmoved"):
        table.add_column(column, justify="right", no_wrap=True)
    for point in (result.clean, *result.points):
        low, high = point.interval()
        first = point is result.clean
        table.add_row(
            "clean" if first else f"{point.eps:g}",
            f"{point.accuracy:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{point.correct:,}",
            f"{point.n:,}",
            "-" if first else f"{point.unmoved:,}",
        )
    out.print(table)
