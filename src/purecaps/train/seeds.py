"""Several seeds one after the other, as if they had been side by side: where they cannot be, or would gain nothing."""

from __future__ import annotations

import json
import os
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from purecaps.data.transforms import parse
from purecaps.data.types import Dataset
from purecaps.files import atomic_write
from purecaps.models.guided import stack_obstacle
from purecaps.train.checkpoint import checkpoints
from purecaps.train.config import RunConfig
from purecaps.train.log import Row, Silent, Watcher
from purecaps.train.loop import InterruptedRunError, Trainer
from purecaps.train.trained_run import TrainedRun


def train(config: RunConfig, dataset: Dataset, out: str | os.PathLike[str], **options: Any) -> TrainedRun:
    """Trains a network: `make_trainer` with these arguments, run to its end."""
    return make_trainer(config, dataset, out, **options).run()


def make_trainer(
    config: RunConfig, dataset: Dataset, out: str | os.PathLike[str], **options: Any
) -> Trainer | SeedsInTurn:
    """A run, checked and ready: several seeds side by side where that gains something, else one after the other.

    A run that is gone on with keeps to the way that it was begun in.

    Args:
        config: what to run.
        dataset: the images.
        out: the run's folder.
        options: those of `Trainer`.
    """
    out = Path(out)
    if config.seeds > 1:
        together = begun_side_by_side(out)
        if together is None:
            together = side_by_side(config, dataset, torch.device(options.get("device", "cpu")))
        if not together:
            return SeedsInTurn(config, dataset, out, **options)
    return Trainer(config, dataset, out, **options)


def begun_side_by_side(out: Path) -> bool | None:
    """How the several seeds of the run in `out` were begun; None where it has no checkpoint.

    The two ways keep their checkpoints in different places. So a run is gone on with as it was begun, on whatever
    device: else it would start at step 0 again.
    """
    if checkpoints(out / "checkpoints"):
        return True
    return False if any(checkpoints(folder / "checkpoints") for folder in out.glob("seed-*")) else None


def side_by_side(config: RunConfig, dataset: Dataset, device: torch.device) -> bool:
    """Whether several seeds are trained at once: on a GPU, where the network can be stacked.

    A small network leaves most of a GPU idle. It keeps the cores of a CPU busy, and by a path that a stack does not
    have: on two cores of an AMD EPYC five seeds side by side take 1.2 (LeNet) to 2.4 times (pcapsnet0) as long as in
    turn.
    """
    if device.type == "cpu":
        return False
    channels, height, width = dataset.in_shape
    shape = (channels, *parse(config.recipe.augment).out_size(height, width))
    return stack_obstacle(config.new_network(shape, dataset.num_classes, {})) is None


class SeedsInTurn:
    """A run of several seeds, each trained alone in out/seed-N; nothing is written before `run`.

    It takes `Trainer`'s arguments and leaves what that does, but for the checkpoints: each seed's are in its folder.
    Going on with a run passes over the seeds that are done.
    """

    def __init__(
        self, config: RunConfig, dataset: Dataset, out: Path, *, watcher: Watcher | None = None, **options: Any
    ) -> None:
        self.config, self.dataset, self.out, self.options = config, dataset, out, options
        self.watcher = watcher or Silent()
        self._ready = [self._trainer(0)]  # refuses now what would be refused later

    def _trainer(self, position: int) -> Trainer:
        seed = self.config.all_seeds[position]
        watcher = _PartOf(self.watcher, self.config.seeds, position)
        alone = replace(self.config, seed=seed, seeds=1)
        return Trainer(alone, self.dataset, seed_folder(self.out, seed), watcher=watcher, **self.options)

    def run(self) -> TrainedRun:
        """Takes all steps that are left, of all seeds."""
        runs: list[TrainedRun] = []
        try:
            for position in range(self.config.seeds):
                run = self._run(position)
                # One copy of the images is enough, on the device above all.
                runs.append(replace(run, prepared=runs[0].prepared) if runs else run)
        finally:
            self.watcher.stop()
        rows = together([run.history for run in runs], self.config.all_seeds)
        with atomic_write(self.out / "metrics.jsonl") as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))
        paces = [run.seconds_per_step for run in runs if run.seconds_per_step is not None]
        return replace(
            runs[0],
            config=self.config,
            models=[run.model for run in runs],
            history=rows,
            seconds=sum(run.seconds for run in runs),
            seconds_per_step=statistics.mean(paces) if paces else None,
            # The least: later seeds have the images and weights of those that are done beside them.
            peak_memory=min((run.peak_memory for run in runs if run.peak_memory is not None), default=None),
        )

    def _run(self, position: int) -> TrainedRun:
        # Not kept: the optimiser and the graph of a seed that is done would take the next one's memory.
        trainer = self._ready.pop() if self._ready else self._trainer(position)
        try:
            return trainer.run()
        except InterruptedRunError as stop:
            raise type(stop)(f"seed {self.config.all_seeds[position]}: {stop}") from stop  # whichever of the two it is


def together(histories: Sequence[Sequence[Row]], seeds: Sequence[int]) -> list[Row]:
    """Rows of several runs as they would be of seeds side by side: means, and each seed's own as name/seed.

    A step that not all runs have a row of, such as one where a run was stopped, is left out.
    """
    by_step = [{row["step"]: row for row in history} for history in histories]
    common = [step for step in by_step[0] if all(step in rows for rows in by_step)]
    return [_mean_row([rows[step] for rows in by_step], seeds) for step in common]


def _mean_row(rows: Sequence[Row], seeds: Sequence[int]) -> Row:
    row: Row = {}
    for name in (name for name in rows[0] if all(name in each for each in rows)):
        values = [each[name] for each in rows]
        if name in ("step", "lr"):
            row[name] = values[0]
        elif name == "seconds":
            row[name] = sum(values)
        else:
            row[name] = statistics.fmean(values)
            if name != "images_per_s":
                row |= {f"{name}/{seed}": value for seed, value in zip(seeds, values, strict=True)}
    return row


def seed_folder(out: Path, seed: int) -> Path:
    """Where a seed of several has its own files."""
    return out / f"seed-{seed}"


def remove_checkpoints(out: Path) -> None:
    """Removes what a run would go on from, whichever way its seeds were trained."""
    for folder in (out, *out.glob("seed-*")):
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)


class _PartOf:
    """Tells a watcher of one seed's progress as part of all seeds'."""

    def __init__(self, watcher: Watcher, seeds: int, position: int) -> None:
        self.watcher, self.seeds, self.position = watcher, seeds, position
        self._steps = 0

    def start(self, total: int, done: int) -> None:
        self._steps = total
        if self.position == 0:
            self.watcher.start(total * self.seeds, done)

    def advance(self, step: int) -> None:
        self.watcher.advance(self._steps * self.position + step)

    def row(self, row: Row) -> None:
        self.watcher.row({**row, "step": self._steps * self.position + row["step"]})

    def stop(self) -> None:
        pass
