"""A job that trains several seeds of one network by one recipe, and reads the test set once with each."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from purecaps import provenance
from purecaps.data.augment import Crop
from purecaps.data.loader import DeviceLoader
from purecaps.data.transforms import parse
from purecaps.data.types import Dataset
from purecaps.evaluate import evaluate
from purecaps.evaluate.averaging import CENTRE, NINE, AveragedViews
from purecaps.evaluate.trained import WEIGHTS
from purecaps.experiments import run as runs
from purecaps.experiments.paper.job import Job, Record, UnfinishedError, Workplace, count_text, fingerprint, keep
from purecaps.models.guided import EVAL_BATCH, eval_batch
from purecaps.models.store import save_model
from purecaps.train import Recipe, RunConfig, TrainedRun, make_trainer
from purecaps.train.arithmetic import arithmetic
from purecaps.train.loop import OutOfTimeError
from purecaps.train.seeds import remove_checkpoints
from purecaps.train.teacher import load_teacher

REVISION = 1  # of what this file does; raise it when numbers made before no longer stand
# Of networks that are evaluated on few images at once, which takes long, the training error is that of so many.
TRAIN_IMAGES = 10_000
AVERAGED = {"mirrored too": CENTRE, "18 views": NINE}  # nine windows, each also mirrored

# Milliseconds a step on one H200 in TF32, of one network and of each one more beside it. The figures of
# pcapsnet0, 2 and 4 are measured with one and with ten (docs/performance.md); the rest are estimates, to say about how
# long something takes.
STEP_MS = {
    "pcapsnet0": (0.20, 0.14),
    "pcapsnet1": (0.09, 0.04),
    "pcapsnet2": (0.09, 0.04),
    "pcapsnet3": (0.13, 0.07),
    "pcapsnet4": (0.34, 0.28),
    "lenet": (0.4, 0.3),
    "cnn_small": (0.3, 0.1),
    "cnn_baseline": (4.0, 4.0),
    "resnet": (1.5, 1.5),
}
FORWARD = 1 / 3  # of a step's time, about: backward takes twice as long
START_SECONDS = 20  # data, kernels, the graph, evaluation


@dataclass(frozen=True)
class TrainingJob(Job):
    """N seeds of a network under a recipe.

    Args:
        model: a registered model's name.
        data: a data set's name.
        recipe_name: what the tables call the recipe.
        recipe: how to train.
        seeds: how many, from 0 on.
        images: how many images of each split are taken; None takes all.
        averaging: also evaluate by test-time averaging; the recipe must crop.
        together: train all seeds side by side; large networks, which fill a device alone, are trained one by one.
        ms: about how many milliseconds a step takes on one H200, of one network and of each one more beside it; None
            takes `STEP_MS`.
        compiled: on a GPU, whether network and loss go through torch.compile: for networks without kernels of ours.
        teacher: whose first network is learned from, where the recipe has a `teacher_share`; it must hold out the same
            images, or those held out here would not be unseen.
        timed: see `Job.timed`.
    """

    model: str
    data: str
    recipe_name: str
    recipe: Recipe
    seeds: int
    images: int | None = None
    averaging: bool = False
    together: bool = True
    ms: tuple[float, float] | None = None
    compiled: bool = False
    teacher: TrainingJob | None = None
    timed: bool = False

    def what(self) -> dict[str, Any]:
        return {
            "kind": "training",
            "revision": REVISION,
            "model": self.model,
            "data": self.data,
            "images": self.images,
            "averaging": self.averaging,
            "recipe": {**self.recipe.as_dict(), "augment": list(self.recipe.augment)},
            **({} if self.teacher is None else {"teacher": self.teacher.what()}),
        }

    def defaults(self) -> dict[str, Any]:
        own = {"recipe": {**Recipe().as_dict(), "augment": []}}
        return own if self.teacher is None else {**own, "teacher": self.teacher.defaults()}

    def is_done(self, record: Record) -> bool:
        return not self._missing(record)

    def summary(self) -> str:
        return f"{self.model}, {self.recipe_name}, {count_text(self.seeds)}, {self.recipe.steps:,} steps"

    def seconds_left(self, record: Record | None) -> float:
        count = len(self._missing(record))
        if not count:
            return 0.0
        one, more = self.ms or STEP_MS[self.model]
        if self.teacher is not None:
            asked = FORWARD * STEP_MS[self.teacher.model][0]
            one, more = one + asked, more + asked
        passes = 1 + self.recipe.adversary_steps if self.recipe.adversary_eps else 1
        seconds = self.recipe.steps * passes / 1e3
        if not self.together:
            return count * (START_SECONDS + seconds * one)
        return START_SECONDS + seconds * (one + more * (count - 1))

    def with_seeds(self, count: int) -> TrainingJob:
        return dataclasses.replace(self, seeds=count)

    def run(self, place: Workplace, record: Record | None) -> None:
        done = [] if record is None else list(record["runs"])
        parts = [] if record is None else list(record["parts"])
        for seeds in self._blocks(self._missing(record)):
            found, part = self._train(place, seeds)
            done, parts = sorted([*done, *found], key=lambda run: run["seed"]), [*parts, part]
            keep(self, place, {**_spread([run["test_error"] for run in done]), "runs": done, "parts": parts})
            # Only now: until the numbers are kept, a kill must find the checkpoint.
            remove_checkpoints(self.folder(place, seeds))

    def folder(self, place: Workplace, seeds: Sequence[int]) -> Path:
        """Where these seeds are trained; another recipe has another folder."""
        return place.work / self.name / f"{fingerprint(self)}-seeds-{seeds[0]}-{seeds[-1]}"

    def weights(self, place: Workplace, seed: int) -> Path | None:
        """The trained network of a seed; None where it is not, or no longer, there."""
        pattern = f"{self.folder(place, [0]).name.split('-')[0]}-seeds-*/seed-{seed}/{WEIGHTS}"
        return next(iter(sorted((place.work / self.name).glob(pattern))), None)

    def _missing(self, record: Record | None) -> list[int]:
        there = set() if record is None else {run["seed"] for run in record["runs"]}
        return [seed for seed in range(self.seeds) if seed not in there]

    def _blocks(self, seeds: Sequence[int]) -> list[list[int]]:
        """What is trained at once: runs of consecutive seeds, or each by itself."""
        blocks: list[list[int]] = []
        for seed in seeds:
            if self.together and blocks and seed == blocks[-1][-1] + 1:
                blocks[-1].append(seed)
            else:
                blocks.append([seed])
        return blocks

    def ensure_weights(self, place: Workplace, seeds: Sequence[int]) -> None:
        """Trains what has no weights here. A record that is there stays as it is: it was made by the same recipe."""
        with place.lock(self.name):
            gone = [seed for seed in seeds if self.weights(place, seed) is None]
            for block in self._blocks(gone):
                place.say(f"{self.name}: training {len(block)} of it for the weights")
                self._train(place, block)
                remove_checkpoints(self.folder(place, block))

    def _train(self, place: Workplace, seeds: Sequence[int]) -> tuple[list[Record], Record]:
        dataset = place.dataset(self.data, self.images)
        name = None if self.teacher is None else self.teacher.name
        config = RunConfig(self.model, self.data, self.recipe_name, self.recipe, seeds[0], len(seeds), teacher=name)
        out = self.folder(place, seeds)
        compiled = self.compiled and place.device.type == "cuda"
        teacher, about_teacher = self._learned_from(place)
        trainer = make_trainer(
            config,
            dataset,
            out,
            device=place.device,
            watcher=place.watcher(),
            deadline=place.deadline,
            compile=compiled,
            teacher=teacher,
        )
        try:
            trained = trainer.run()
        except OutOfTimeError as stop:
            raise UnfinishedError(f"{self.name}: {stop}") from stop
        with arithmetic(self.recipe.precision, place.device):
            found = [
                self._evaluated(seed, network, trained, dataset)
                for seed, network in zip(seeds, trained.models, strict=True)
            ]
        part = {
            "seeds": list(seeds),
            "command": f"{self.command} --seeds {self.seeds}",
            "train_seconds": round(trained.seconds, 1),
            **runs.costs_of(trained),
            "finished": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
            "parameters": sum(parameter.numel() for parameter in trained.model.parameters()),
            **({"compiled": True} if compiled else {}),
            **({"beside_others": True} if place.shared else {}),  # on one device: its times are too long
            **about_teacher,
            "versions": provenance.versions(place.device),
        }
        for run, network in zip(found, trained.models, strict=True):
            about = {"recipe": self.recipe_name, "job": self.name, **run, **part}
            save_model(network, out / f"seed-{run['seed']}" / WEIGHTS, trained.info(about))
        return found, part

    def _learned_from(self, place: Workplace) -> tuple[nn.Module | None, Record]:
        """The network to learn from, trained where it is not there, and what the record says of it."""
        if self.teacher is None:
            return None, {}
        self.teacher.ensure_weights(place, [0])
        path = self.teacher.weights(place, 0)
        assert path is not None
        network, info = load_teacher(path, self.recipe)
        numbers = {
            name: info.record[name] for name in ("job", "seed", "test_error", "val_error") if name in info.record
        }
        return network, {"teacher": numbers}

    def _evaluated(self, seed: int, network: nn.Module, trained: TrainedRun, dataset: Dataset) -> Record:
        def result(model: nn.Module, loader: DeviceLoader) -> Any:
            return evaluate(model, loader.eval_batches(eval_batch(model)), num_classes=dataset.num_classes)

        prepared = trained.prepared
        run: Record = {"seed": seed, **runs.errors_of(result(network, prepared.test))}
        batch = eval_batch(network)
        if batch < EVAL_BATCH and len(prepared.train.labels) > TRAIN_IMAGES:
            some = itertools.islice(prepared.train.eval_batches(batch), TRAIN_IMAGES // batch)
            found = evaluate(network, some, num_classes=dataset.num_classes)
            run |= {"train_error": found.error_rate, "train_images": len(found)}
        else:
            run["train_error"] = result(network, prepared.train).error_rate
        if prepared.val is not None:
            run["val_error"] = result(network, prepared.val).error_rate
        if self.averaging:
            whole = self._whole_images(dataset, prepared.test)
            size = self._window()
            run["averaged"] = {
                name: result(AveragedViews(network, size, shifts=shifts), whole).error_rate
                for name, shifts in AVERAGED.items()
            }
        return run

    def _window(self) -> tuple[int, int]:
        crops = [each for each in parse(self.recipe.augment).transforms if isinstance(each, Crop)]
        return crops[-1].size, crops[-1].size

    def _whole_images(self, dataset: Dataset, cropped: DeviceLoader) -> DeviceLoader:
        """The test images that `cropped` cuts windows out of, whitened where those are."""
        whitened = None if cropped.images.dtype == dataset.test.images.dtype else cropped.images
        return DeviceLoader(
            dataset.test, EVAL_BATCH, seed=0, scale=cropped.scale, device=cropped.images.device, preprocessed=whitened
        )


def _spread(errors: Sequence[float]) -> Record:
    return {
        "test_error_mean": statistics.mean(errors),
        "test_error_std": statistics.stdev(errors) if len(errors) > 1 else None,
    }
