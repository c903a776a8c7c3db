"""Several seeds one after the other, as if they had been side by side: where they cannot be, or would gain nothing."""

from __future__ import annotations

import json
import shutil
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Unpack

from purecaps.data.types import Dataset
from purecaps.files import atomic_write
from purecaps.train.config import RunConfig
from purecaps.train.log import Row, Silent, Watcher
from purecaps.train.loop import InterruptedRunError, Trainer, TrainerOptions
from purecaps.train.trained_run import TrainedRun


class SeedsInTurn:
    """A run of several seeds, each trained alone in out/seed-N; nothing is written before `run`.

    It takes `Trainer`'s arguments and leaves what that does, but for the checkpoints: each seed's are in its folder.
    Going on with a run passes over the seeds that are done.
    """

    def __init__(self, config: RunConfig, dataset: Dataset, out: Path, **options: Unpack[TrainerOptions]) -> None:
        self.config, self.dataset, self.out, self.options = config, dataset, out, options
        self.watcher = options.get("watcher") or Silent()
        self._ready = [self._trainer(0)]  # refuses now what would be refused later

    def _trainer(self, position: int) -> Trainer:
        seed = self.config.all_seeds[position]
        watcher = _PartOf(self.watcher, self.config.seeds, position)
        alone = replace(self.config, seed=seed, seeds=1)
        options: TrainerOptions = {**self.options, "watcher": watcher}
        return Trainer(alone, self.dataset, seed_folder(self.out, seed), **options)

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
