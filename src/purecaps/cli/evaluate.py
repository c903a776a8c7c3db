"""`purecaps eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purecaps.cli.options import Device, PretrainedModel, Root, Seed, Weights, load_data_for, load_trained
from purecaps.cli.support import out, progress_bar
from purecaps.cli.tables import print_result
from purecaps.cli.targets import check_folder
from purecaps.evaluate import evaluate
from purecaps.experiments import run as runs
from purecaps.train import pick_device


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
    check_folder("--out", out_dir)
    trained = load_trained(checkpoint, model).to(chosen)
    source = data_name or trained.info.trained_on
    dataset = load_data_for(trained.info, source, root)
    with progress_bar("images", len(dataset.test)) as progress:
        batches = trained.batches(dataset.test)
        result = evaluate(trained.model, batches, num_classes=trained.info.num_classes, progress=progress)
    print_result(result, source, dataset.class_names)
    if out_dir is not None:
        runs.write_evaluation(out_dir, result, dataset, trained.info, chosen)
        out.print(f"written to {out_dir}", soft_wrap=True)
    out.print(f"test error: {result.error_rate:.2f} %")
