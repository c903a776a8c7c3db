"""One run from start to finish: data, training, the one look at the test set, weights, pictures, report."""

from __future__ import annotations

import contextlib
import os
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from purecaps.data.types import Dataset
from purecaps.errors import CheckpointError
from purecaps.evaluate import Result, evaluate, pictures, write_report
from purecaps.evaluate.trained import WEIGHTS
from purecaps.experiments.run_folder import holds_run
from purecaps.files import atomic_write, write_json
from purecaps.models.guided import eval_batch
from purecaps.models.store import ModelInfo, save_model
from purecaps.provenance import versions
from purecaps.train import RunConfig, TrainedRun, make_trainer
from purecaps.train.log import Watcher
from purecaps.train.seeds import seed_folder

WORST = 24

Progress = Callable[[int], None]  # told how many more are done
ProgressBar = Callable[[str, int], contextlib.AbstractContextManager[Progress]]  # of what, and how many in all


def no_bar(text: str, total: int) -> contextlib.AbstractContextManager[Progress]:
    """The bar of somebody who does not watch."""
    return contextlib.nullcontext(lambda count: None)


@dataclass(frozen=True)
class Outcome:
    """A finished run.

    Args:
        results: for each seed its scores on the test set.
        trained: the networks and how they came about.
        out: the folder with everything it wrote.
    """

    results: list[Result]
    trained: TrainedRun
    out: Path

    @property
    def errors(self) -> list[float]:
        """Test error of each seed, in percent."""
        return [result.error_rate for result in self.results]


def run(
    config: RunConfig,
    dataset: Dataset,
    out: str | os.PathLike[str],
    *,
    device: torch.device | str,
    images_from: str | None = None,
    watcher: Watcher | None = None,
    tensorboard: bool = False,
    graph: bool | None = None,
    compile: bool = False,
    teacher: nn.Module | None = None,
    command: str | None = None,
    say: Callable[[str], None] = lambda text: None,
    bar: ProgressBar = no_bar,
) -> Outcome:
    """Trains, then reads the test set once and writes the weights, the numbers, the pictures and the report.

    With several seeds, each has a folder seed-N of its own for its weights and numbers; the pictures and the report are
    those of the first.

    Args:
        config: what to run; a checkpoint of the same run in `out` is gone on from.
        dataset: the images that `config.data` names.
        out: the folder to write to.
        device: where to train.
        images_from: where the images are now, if no longer where `config.data` says: what is written names that.
        watcher: who is told of the progress.
        tensorboard: also write TensorBoard scalars.
        graph: whether to run each step as one CUDA graph; None does so where it can be done.
        compile: whether network and loss go through torch.compile.
        teacher: a trained network to learn from, which `config.teacher` names.
        command: what the report says made it; None takes this process's command line.
        say: told what happens after training.
        bar: shows how far the test set is read.
    """
    out, device = Path(out), torch.device(device)
    trainer = make_trainer(
        config,
        dataset,
        out,
        device=device,
        watcher=watcher,
        tensorboard=tensorboard,
        graph=graph,
        compile=compile,
        teacher=teacher,
    )
    if not holds_run(out) and not is_of(config, out):
        (out / "command.txt").unlink(missing_ok=True)  # of a run that failed before its first checkpoint
    config.save(out / "config.json")
    command = first_command(out, command or shlex.join(["purecaps", *sys.argv[1:]]))
    trained = trainer.run()
    if images_from is not None:  # config.json and the checkpoints keep the path that the run was begun with
        config = replace(config, data=images_from)
        trained = replace(trained, config=config)
    say("reading the test set")
    with bar("images", len(dataset.test) * len(trained.models)) as progress:
        results = [
            evaluate(
                network,
                trained.prepared.test.eval_batches(eval_batch(network)),
                num_classes=dataset.num_classes,
                progress=progress,
            )
            for network in trained.models
        ]
    outcome = Outcome(results, trained, out)
    common = record_of(config, trained, device, command)
    records = [
        {**common, "seed": seed, **errors_of(result)} for seed, result in zip(config.all_seeds, results, strict=True)
    ]
    several = config.seeds > 1
    for record, network, result in zip(records, trained.models, results, strict=True):
        folder = seed_folder(out, record["seed"]) if several else out
        save_model(network, folder / WEIGHTS, trained.info(record))
        write_json(folder / "result.json", {**record, "test": result.as_dict()})
    if several:
        spread = {
            "test_error_mean": statistics.mean(outcome.errors),
            "test_error_std": statistics.stdev(outcome.errors),
        }
        write_json(out / "result.json", {**common, "seeds": list(config.all_seeds), **spread, "runs": records})
    say("drawing the report")
    write_pictures(out, results[0], dataset)
    write_run_report(config, outcome, dataset, records[0])
    return outcome


def is_of(config: RunConfig, out: Path) -> bool:
    """Whether what was begun in `out`, if anything, is this run."""
    path = out / "config.json"
    try:
        return not path.is_file() or RunConfig.load(path) == config
    except CheckpointError:  # damaged
        return False


def first_command(out: Path, command: str) -> str:
    """The command that the run in `out` was begun with, which a later one that goes on with it does not replace."""
    path = out / "command.txt"
    # A path need not be UTF-8; Python keeps its other bytes as surrogates.
    how = {"encoding": "utf-8", "errors": "surrogateescape"}
    if not path.is_file():
        with atomic_write(path) as temporary:
            temporary.write_text(command + "\n", **how)
    return path.read_text(**how).strip()


def record_of(config: RunConfig, trained: TrainedRun, device: torch.device, command: str) -> dict[str, Any]:
    """What a number needs beside it to be believed."""
    return {
        "model": config.model,
        "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
        "data": config.data,
        "recipe": config.recipe_name,
        **({} if config.teacher is None else {"teacher": config.teacher}),
        **({"options": config.options} if config.options else {}),
        "steps": config.recipe.steps,
        "train_seconds": round(trained.seconds, 1),
        **costs_of(trained),
        "command": command,
        "versions": versions(device),
    }


def costs_of(trained: TrainedRun) -> dict[str, Any]:
    """Time and memory of a training step, and how many networks it was of."""
    return {
        "seconds_per_step": trained.seconds_per_step,
        "peak_memory_bytes": trained.peak_memory,
        "side_by_side": trained.side_by_side,
    }


def errors_of(result: Result) -> dict[str, Any]:
    return {
        "test_error": result.error_rate,
        "test_errors": result.errors,
        "test_images": len(result),
        "test_error_interval": list(result.interval()),
    }


def write_pictures(out: Path, result: Result, dataset: Dataset) -> None:
    """confusion.png, and worst.png with the mistakes of the widest margin."""
    pictures.save(pictures.confusion_matrix(result, dataset.class_names), out / "confusion.png")
    worst = dataset.test.images[result.most_confused(WORST)]
    pictures.save(pictures.worst_images(worst, result, dataset.class_names), out / "worst.png")


def write_run_report(config: RunConfig, outcome: Outcome, dataset: Dataset, record: dict[str, Any]) -> None:
    trained, result = outcome.trained, outcome.results[0]
    summary = {"Training time": f"{trained.seconds:,.0f} s"}
    if config.seeds > 1:
        summary["Test error"] = f"{mean_and_spread(outcome.errors)}, {config.seeds} seeds"
        summary[f"Seed {config.seed}, shown below"] = f"{result.error_rate:.2f} %"
    write_report(
        outcome.out / "report.html",
        title=f"{config.model} on {Path(config.data).name}",
        summary=summary,
        result=result,
        history=trained.history,
        model=trained.model,
        worst_images=dataset.test.images[result.most_confused(WORST)],
        class_names=dataset.class_names,
        config=config.as_dict(),
        versions=record["versions"],
        command=record["command"],
        weights=WEIGHTS if config.seeds == 1 else f"seed-{config.seed}/{WEIGHTS}",
    )


def mean_and_spread(errors: Sequence[float]) -> str:
    """Errors of several seeds as "0.73 +- 0.12 %"."""
    return f"{statistics.mean(errors):.2f} +- {statistics.stdev(errors):.2f} %"


def write_evaluation(out: Path, result: Result, dataset: Dataset, info: ModelInfo, device: torch.device) -> None:
    """result.json and the pictures of an evaluation that followed no training."""
    write_pictures(out, result, dataset)
    found = {"model": info.name, "data": dataset.name, "test": result.as_dict(), "versions": versions(device)}
    write_json(out / "result.json", found)
