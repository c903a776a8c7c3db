"""The one training loop."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from purecaps.data.loader import DeviceLoader
from purecaps.data.preprocess import WHITENING
from purecaps.data.types import Dataset, Split
from purecaps.errors import ConfigError, DataError, PurecapsError
from purecaps.malloc import keep_freed_memory
from purecaps.models.guided import eval_batch
from purecaps.models.stack import ModelStack
from purecaps.train.arithmetic import arithmetic
from purecaps.train.checkpoint import State, read_newest, restore, save_checkpoint
from purecaps.train.config import RunConfig
from purecaps.train.log import MetricsFile, Row, Silent, TensorBoard, Watcher, require_tensorboard
from purecaps.train.loss import loss_of
from purecaps.train.meter import Meter
from purecaps.train.optimiser import make_optimiser
from purecaps.train.prepare import prepare
from purecaps.train.recipe import Recipe
from purecaps.train.schedule import learning_rate
from purecaps.train.step import Stepper, graph_obstacle, make_stepper
from purecaps.train.targets import require_labels, require_trainable
from purecaps.train.teacher import Teacher, require_teacher
from purecaps.train.trained_run import TrainedRun


class DivergedError(PurecapsError):
    """The loss stopped being a number."""


class InterruptedRunError(PurecapsError):
    """The run was asked to stop; its state is saved."""


class OutOfTimeError(InterruptedRunError):
    """The run stopped by itself, for its deadline; its state is saved."""


class TrainerOptions(TypedDict, total=False):
    """What `Trainer` takes by name."""

    device: torch.device | str
    watcher: Watcher | None
    tensorboard: bool
    graph: bool | None
    compile: bool
    deadline: float
    teacher: nn.Module | None


class Trainer:
    """A run, checked and ready; nothing is written before `run`.

    Args:
        config: what to run.
        dataset: the images; the test split is prepared but not read.
        out: folder for metrics.jsonl, checkpoints/ and, where images are whitened, whitening.safetensors. Where it
            holds a checkpoint, that must be of the same run, which is then gone on with.
        device: where to train.
        watcher: who is told of the progress.
        tensorboard: also write TensorBoard scalars to out/tensorboard.
        graph: whether to run each step as one CUDA graph; None does so where it can be done.
        compile: whether network and loss go through torch.compile: for networks that have no kernels of ours.
        deadline: the `time.monotonic()` by which the run stops by itself, as on Ctrl-C: with a checkpoint. Where steps
            are queued faster than they are computed, that is a little before.
        teacher: a trained network to learn from, where the recipe has a `teacher_share`; a copy of it is asked.
    """

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        out: str | os.PathLike[str],
        *,
        device: torch.device | str = "cpu",
        watcher: Watcher | None = None,
        tensorboard: bool = False,
        graph: bool | None = None,
        compile: bool = False,
        deadline: float = math.inf,
        teacher: nn.Module | None = None,
    ) -> None:
        device, watcher = torch.device(device), watcher or Silent()
        if device.type == "cpu":
            keep_freed_memory()
        self.config, self.recipe, self.out = config, config.recipe, Path(out)
        self.device, self.watcher, self.tensorboard, self.graph = device, watcher, tensorboard, graph
        self.compile, self.deadline = compile, deadline
        self.prepared = prepare(dataset, self.recipe, seeds=config.all_seeds, device=device)
        obstacle = graph_obstacle(self.prepared.train)
        if graph and obstacle is not None:
            raise ConfigError(f"--graph: expected {obstacle}; leave it out")
        if tensorboard:
            require_tensorboard()
        self.model_options = {**self.recipe.model_options(), **config.options, **self.prepared.model_options}
        self.image_shape, self.class_names = dataset.in_shape, dataset.class_names
        self.num_classes = dataset.num_classes
        self.data_digest = digest_of(dataset.train)
        require_teacher(teacher, self.recipe, self.prepared.train.in_shape, self.num_classes)
        networks = [self._new_network(seed) for seed in config.all_seeds]
        require_trainable(networks[0], self.prepared.train.in_shape, self.num_classes)
        require_labels(networks[0], self.recipe)
        self.teacher = None if teacher is None else Teacher(teacher, device, compile=compile)
        self.model = (networks[0] if len(networks) == 1 else ModelStack(networks)).to(device)
        self.averaged = (
            {name: tensor.detach().clone() for name, tensor in self.model.named_parameters()} if self.recipe.ema else {}
        )
        self.state = State(self.model, make_optimiser(self.model, self.recipe), self.averaged)
        self.step, self.meter = 0, Meter(device)
        self._stop_asked, self._time_up = False, False
        self._begun = self._read_checkpoint()

    def _new_network(self, seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return self.config.new_network(self.prepared.train.in_shape, self.num_classes, self.prepared.model_options)

    def run(self) -> TrainedRun:
        """Takes all steps that are left.

        Raises:
            OutOfTimeError: the deadline came first.
            InterruptedRunError: the user asked to stop.
        """
        self._resume()
        if self.prepared.zca is not None:
            self.prepared.zca.save(self.out / WHITENING)
        metrics = MetricsFile(self.out / "metrics.jsonl", from_step=self.step)
        self.watcher.start(self.recipe.steps, self.step)
        try:
            with contextlib.ExitStack() as stack:
                stack.callback(metrics.close)
                stack.callback(self.watcher.stop)
                stack.enter_context(self._signals())
                stack.enter_context(arithmetic(self.recipe.precision, self.device))
                board = self._board(stack)
                self.meter.forget_peak()
                stepper = make_stepper(
                    self.state,
                    self.prepared.train,
                    self.recipe,
                    self.step,
                    graph=self.graph,
                    compile=self.compile,
                    teacher=self.teacher,
                )
                saved = self.step
                while self.step < self.recipe.steps and not self._stopping:
                    row = self._window(stepper)
                    metrics.add(row)
                    self.watcher.row(row)
                    if board is not None:
                        board.add(row)
                    if self._due(self.recipe.checkpoint_every):
                        self._save()
                        saved = self.step
                # Not in the loop: it may be asked to stop at any line there, after a look at whether to save too.
                if self._stopping:
                    if saved < self.step:
                        self._save()
                    # Whoever wants to stop is told so, even if time was up first.
                    reason = InterruptedRunError if self._stop_asked else OutOfTimeError
                    raise reason(f"stopped at step {self.step} of {self.recipe.steps}")
        except KeyboardInterrupt:  # the second Ctrl-C, which does not wait for a checkpoint
            raise InterruptedRunError(f"stopped at once, near step {self.step}") from None
        finished = [network.eval() for network in self._evaluated_networks()]
        return TrainedRun(
            self.config,
            finished,
            self.model_options,
            self.image_shape,
            self.class_names,
            self.prepared,
            metrics.rows,
            self.meter.seconds,
            self.meter.seconds_per_step,
            self.meter.peak_memory,
            self.config.seeds,
        )

    def _board(self, stack: contextlib.ExitStack) -> TensorBoard | None:
        if not self.tensorboard:
            return None
        return stack.enter_context(TensorBoard(self.out / "tensorboard", from_step=self.step))

    def _window(self, stepper: Stepper) -> Row:
        """Steps up to where a row, a validation or a checkpoint is due, and the row of metrics since the one before."""
        recipe, begun, first = self.recipe, time.perf_counter(), self.step
        ends = (
            _next_multiple(first, every) for every in (recipe.log_every, recipe.eval_every, recipe.checkpoint_every)
        )
        due = min(recipe.steps, *ends)
        end = self._in_time(first, due)
        losses, mistakes = stepper(first, end, self._keep_going)
        _stop_if_not_finite(losses, first, self.prepared.train)
        self.step = first + len(losses)
        self._time_up = self._time_up or end < due
        taken = time.perf_counter() - begun
        self.meter.add(taken, len(losses))
        images = len(losses) * recipe.batch_size
        row: Row = {
            "step": self.step,
            **self._of_seeds("loss", losses.double().mean(dim=0)),
            **self._of_seeds("error", 100 * mistakes / images),
            "lr": learning_rate(recipe, self.step - 1),
            "images_per_s": images * len(self.config.all_seeds) / taken,
            "seconds": self.meter.seconds,
        }
        if self._due(recipe.eval_every):
            for prefix, loader in (("val", self.prepared.val), ("train", self.prepared.probe)):
                row |= self._looked_at(prefix, loader)
            self.meter.forget_peak()
        return row

    def _looked_at(self, prefix: str, loader: DeviceLoader | None) -> Row:
        """Loss and error on a loader's images, by names such as val_loss; nothing without images."""
        if loader is None:
            return {}
        found = [validate(network, loader, self.recipe) for network in self._evaluated_networks()]
        row: Row = {}
        for name in found[0]:
            row |= self._of_seeds(f"{prefix}_{name}", torch.tensor([each[name] for each in found]))
        return row

    def _of_seeds(self, name: str, values: Tensor) -> Row:
        """The mean over seeds, and where there are several each seed's own as name/seed."""
        row = {name: float(values.mean())}
        if len(self.config.all_seeds) > 1:
            row |= {f"{name}/{seed}": value for seed, value in zip(self.config.all_seeds, values.tolist(), strict=True)}
        return row

    def _in_time(self, first: int, end: int) -> int:
        """The step at which time will be up, where that comes before `end`.

        A graph's steps are queued far faster than they are computed, so that the clock tells nothing between them.
        """
        each = self.meter.seconds_per_step
        if not each or math.isinf(self.deadline):
            return end
        return min(end, first + max(1, int((self.deadline - time.monotonic()) / each)))

    def _due(self, every: int) -> bool:
        return self.step % every == 0 or self.step == self.recipe.steps

    def _keep_going(self, step: int) -> bool:
        self.watcher.advance(step)
        self._time_up = self._time_up or time.monotonic() >= self.deadline
        return not self._stopping

    @property
    def _stopping(self) -> bool:
        return self._stop_asked or self._time_up

    def _evaluated_networks(self) -> list[nn.Module]:
        """The networks as they are evaluated: with averaged weights where the recipe keeps them."""
        model = self.model
        if self.averaged:
            model = copy.deepcopy(model)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    parameter.copy_(self.averaged[name])
        return model.unstack() if isinstance(model, ModelStack) else [model]

    def _read_checkpoint(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What there is to go on from; refused where it is of another run."""
        found = read_newest(self.out / "checkpoints")
        if found is None:
            return None
        _, meta = found
        require_same_run(self.config, RunConfig.from_dict(meta["config"]), str(self.out))
        if meta["data_digest"] != self.data_digest:
            raise DataError(
                f"{self.out}: expected the training images that the run was begun with, "
                f"got others from {self.config.data}"
            )
        if meta.get("teacher_digest") != self._teacher_digest:
            raise ConfigError(f"teacher: expected the network that the run in {self.out} learned from, got another one")
        return found

    def _resume(self) -> None:
        if self._begun is None:
            return
        (tensors, meta), self._begun = self._begun, None
        restore(self.state, tensors, what=str(self.out))
        self.step = meta["step"]
        self.meter.restore(meta)

    def _save(self) -> None:
        meta = {
            "config": self.config.as_dict(),
            "data_digest": self.data_digest,
            "teacher_digest": self._teacher_digest,
            **self.meter.as_dict(),
        }
        save_checkpoint(self.out / "checkpoints", self.step, self.state, meta)

    @property
    def _teacher_digest(self) -> str | None:
        return None if self.teacher is None else self.teacher.digest

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM lets the step end and a checkpoint be written; the second does not wait."""

        def ask(number: int, frame: FrameType | None) -> None:
            if self._stop_asked:
                raise KeyboardInterrupt
            self._stop_asked = True

        try:
            before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # signals can be handled in the main thread only
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@torch.inference_mode()
def validate(model: nn.Module, loader: DeviceLoader, recipe: Recipe) -> Row:
    """Loss and error (percent) over a loader's images, in order and untransformed."""
    model.eval()
    loss, wrong, count = 0.0, 0, 0
    for images, labels in loader.eval_batches(eval_batch(model)):
        scores = model(images)
        loss += float(loss_of(recipe, scores, labels)) * len(labels)
        wrong += int((scores.argmax(dim=1) != labels).sum())
        count += len(labels)
    return {"loss": loss / count, "error": 100 * wrong / count}


def require_same_run(asked: RunConfig, saved: RunConfig, where: str) -> None:
    """Refuses to go on with a run under another configuration, and names what differs."""
    left, right = _flat(asked.as_dict()), _flat(saved.as_dict())
    differ = [f"{name} is {right[name]}, not {left[name]}" for name in left if left[name] != right[name]]
    if differ:
        raise PurecapsError(f"{where}: expected the run that was begun there, got another one: {'; '.join(differ)}")


def digest_of(split: Split) -> str:
    """What tells a set of labelled images from another."""
    state = hashlib.sha256(str(tuple(split.images.shape)).encode())
    for tensor in (split.images, split.labels):
        state.update(tensor.contiguous().numpy().data)
    return state.hexdigest()


def _flat(values: dict[str, Any]) -> dict[str, str]:
    recipe = values.pop("recipe")
    return {name: json.dumps(value) for name, value in {**values, **recipe}.items()}


def _stop_if_not_finite(losses: Tensor, first: int, loader: DeviceLoader) -> None:
    bad = (~losses.isfinite()).nonzero()
    if len(bad):
        position, *network = bad[0].tolist()  # in a stack, also which of its networks
        step, loss = first + position, float(losses[*bad[0]])
        images = loader.indices(step)[*network, :8].tolist()
        raise DivergedError(
            f"step {step}: expected a finite loss, got {loss} (batch of training images "
            f"{', '.join(map(str, images))}, ...). Try a lower --lr, --grad-clip 1 or --precision fp32; "
            "checkpoints written before it are kept"
        )


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every
