"""One training step: sample, targets, forward, loss, backward, optimiser, averaging. As it is, or as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor, nn

from purecaps.data.loader import DeviceLoader
from purecaps.data.random import key
from purecaps.models.stack import ModelStack
from purecaps.ops import triton as fused
from purecaps.ops.triton.length_loss import ones_of
from purecaps.train import adversary
from purecaps.train.checkpoint import State
from purecaps.train.loss import loss_and_mistakes
from purecaps.train.optimiser import clip_gradients, put_rate_on_device
from purecaps.train.recipe import Recipe
from purecaps.train.schedule import learning_rate
from purecaps.train.targets import targets_of
from purecaps.train.teacher import Teacher

# Told the steps done so far after each one; False asks to stop there.
KeepGoing = Callable[[int], bool]
LossFunction = Callable[[nn.Module, Tensor, Tensor, Recipe, "int | Tensor | None"], tuple[Tensor, Tensor]]

_WARM_UP = 3
# Of the stream that a step is captured on: above the streams of weight gradients (ops/triton/stack.py), for which no
# other kernel waits.
PRIORITY = -1


class Stepper(Protocol):
    """Takes training steps `first` up to `end`, and returns their losses and how many images were mistaken.

    Both are on the CPU: losses [steps], or [steps, S] for a stack of S networks, and mistakes [] or [S]. Fewer losses
    than asked for mean that it was asked to stop, or that the last loss is not finite.
    """

    def __call__(self, first: int, end: int, keep_going: KeepGoing) -> tuple[Tensor, Tensor]: ...


class EagerStepper:
    """Steps launched operation by operation, on any device; with `compile`, network and loss by torch.compile."""

    def __init__(
        self,
        state: State,
        loader: DeviceLoader,
        recipe: Recipe,
        *,
        compile: bool = False,
        teacher: Teacher | None = None,
    ) -> None:
        self.state, self.loader, self.recipe, self.teacher = state, loader, recipe, teacher
        self._loss = _compiled() if compile else None

    def __call__(self, first: int, end: int, keep_going: KeepGoing) -> tuple[Tensor, Tensor]:
        self.state.model.train()
        on_cpu = self.loader.labels.device.type == "cpu"
        losses, mistakes = [], []
        for step in range(first, end):
            for group in self.state.optimiser.param_groups:
                group["lr"] = learning_rate(self.recipe, step)
            images, labels = self.loader.batch(step)
            images, labels = targets_of(self.state.model, images, labels, self.recipe, self.loader, step, self.teacher)
            images = against(self.state.model, images, labels, self.recipe, self.loader, step)
            # A number would be compiled into the code, and the code made anew for the next one.
            at = step if self._loss is None else torch.tensor(step, device=labels.device)
            loss, wrong = update(self.state, images, labels, self.recipe, at, self._loss)
            if self.state.averaged:
                average(self.state, min(self.recipe.ema, _young_decay(step)))
            losses.append(loss)
            mistakes.append(wrong)
            # Elsewhere than on the CPU, looking at each loss would make the host wait for the device.
            if on_cpu and not bool(loss.isfinite().all()):
                break
            if not keep_going(step + 1):
                break
        return torch.stack(losses).cpu(), torch.stack(mistakes).sum(dim=0).cpu()


class GraphStepper:
    """The whole step as one CUDA graph: the host only launches it, and reads back once a window.

    Step number, learning rate, order of images and the window's losses live on the device. The host rewrites the
    order of images when an epoch begins.

    Args:
        state: the run; it is warmed up with real steps and put back as it was.
        loader: training images, at least one batch of them.
        recipe: how to train; a window is at most `log_every` steps.
        step: the step to begin with.
        compile: whether network and loss go through torch.compile first.
        teacher: whom the targets are also of; None where the recipe asks for none.
    """

    def __init__(
        self,
        state: State,
        loader: DeviceLoader,
        recipe: Recipe,
        step: int,
        *,
        compile: bool = False,
        teacher: Teacher | None = None,
    ) -> None:
        self.state, self.loader, self.recipe, self.teacher = state, loader, recipe, teacher
        self._loss = _compiled() if compile else None
        device = loader.labels.device
        # A little longer than the run: warming up near its end takes steps past it.
        rates = [learning_rate(recipe, each) for each in range(recipe.steps + _WARM_UP + 2)]
        self._rates = torch.tensor(rates, dtype=torch.float32, device=device)
        self._rate = self._rates[step].clone()
        self._step = torch.tensor(step, dtype=torch.int64, device=device)
        self._order = torch.zeros_like(loader.epoch_order(0))
        stacked = self._order.shape[:-1]
        self._losses = torch.zeros(recipe.log_every, *stacked, device=device)
        self._mistakes = torch.zeros(stacked, dtype=torch.int64, device=device)
        self._epoch = -1
        put_rate_on_device(state.optimiser, self._rate)
        self._set_epoch(step)
        self._graph = self._capture()

    def __call__(self, first: int, end: int, keep_going: KeepGoing) -> tuple[Tensor, Tensor]:
        self._step.fill_(first)
        self._rate.copy_(self._rates[first])
        self._mistakes.zero_()
        done = first
        for step in range(first, end):
            self._set_epoch(step)
            self._graph.replay()
            done = step + 1
            if not keep_going(done):
                break
        # The only place where the host waits for the device.
        slots = [step % self.recipe.log_every for step in range(first, done)]
        return self._losses.cpu()[slots], self._mistakes.cpu()

    def _set_epoch(self, step: int) -> None:
        epoch = step // self.loader.steps_per_epoch
        if epoch != self._epoch:
            self._order.copy_(self.loader.epoch_order(epoch))
            self._epoch = epoch

    def _body(self) -> None:
        recipe, step = self.recipe, self._step
        images, labels = self.loader.take_in_order(self._order, step)
        images, labels = targets_of(self.state.model, images, labels, recipe, self.loader, step, self.teacher)
        images = against(self.state.model, images, labels, recipe, self.loader, step)
        loss, wrong = update(self.state, images, labels, recipe, step, self._loss)
        if self.state.averaged:
            young = (1 + step) / (10 + step)
            average(self.state, young.clamp(max=recipe.ema))
        self._tally(loss, wrong)

    def _tally(self, loss: Tensor, wrong: Tensor) -> None:
        """Notes loss and mistakes, and makes the next step ready: all in one kernel where Triton is at hand."""
        step = self._step
        if fused.missing(step.device.type) is None:
            from purecaps.train.tally_kernel import launch_tally

            launch_tally(loss, wrong, self._losses, self._mistakes, step, self._rate, self._rates)
            return
        self._losses.index_copy_(0, (step % self.recipe.log_every).view(1), loss[None])
        self._mistakes += wrong
        step += 1
        # Not self._rates[step]: a single number as index is read back by the host, which a graph cannot do.
        self._rate.copy_(self._rates.index_select(0, step.view(1)).view(()))

    def _capture(self) -> torch.cuda.CUDAGraph:
        with torch.cuda.device(self._step.device):  # streams are made on the current one
            return self._captured()

    def _captured(self) -> torch.cuda.CUDAGraph:
        self.state.model.train()
        before = _snapshot(self.state, self._step)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP):
                self._body()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self.state.optimiser.zero_grad(set_to_none=True)
        with torch.cuda.graph(graph, stream=torch.cuda.Stream(priority=PRIORITY)):
            self._body()
        _put_back(self.state, self._step, before)
        return graph


def make_stepper(
    state: State,
    loader: DeviceLoader,
    recipe: Recipe,
    step: int,
    *,
    graph: bool | None,
    compile: bool = False,
    teacher: Teacher | None = None,
) -> Stepper:
    """The stepper for a run.

    Args:
        state: the run.
        loader: its training images.
        recipe: how to train.
        step: the step to begin with.
        graph: whether to run as a CUDA graph; None does so where it can be done.
        compile: whether network and loss go through torch.compile.
        teacher: whom the targets are also of; None where the recipe asks for none.
    """
    possible = graph_obstacle(loader) is None and step < recipe.steps
    as_graph = possible if graph is None else graph and step < recipe.steps
    if as_graph:
        return GraphStepper(state, loader, recipe, step, compile=compile, teacher=teacher)
    return EagerStepper(state, loader, recipe, compile=compile, teacher=teacher)


def _compiled() -> LossFunction:
    return torch.compile(loss_and_mistakes, dynamic=False)


def graph_obstacle(loader: DeviceLoader) -> str | None:
    """Why steps on these images cannot be a CUDA graph; None where they can."""
    if loader.labels.device.type != "cuda":
        return f"a CUDA device, got {loader.labels.device}"
    if len(loader.labels) < loader.batch_size:
        return f"at least one batch of {loader.batch_size} training images, got {len(loader.labels)}"
    return None


def against(
    model: nn.Module, images: Tensor, labels: Tensor, recipe: Recipe, loader: DeviceLoader, step: int | Tensor
) -> Tensor:
    """The batch perturbed against the network, where the recipe asks for adversarial training."""
    if not recipe.adversary_eps:
        return images
    stream = key(loader.seed, adversary.STREAM, step, device=images.device)
    return adversary.harden(images, recipe, stream, lambda at: loss_and_mistakes(model, at, labels, recipe, step)[0])


def update(
    state: State,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    step: int | Tensor | None = None,
    measure: LossFunction | None = None,
) -> tuple[Tensor, Tensor]:
    """One gradient step on a batch; returns the loss and how many images were mistaken, on the device.

    For a stack of networks both have its axis: [S]. The networks share no weights, so the gradient of the sum of their
    losses is each network's own. `measure` is `loss_and_mistakes`, or that compiled.
    """
    loss, wrong = (measure or loss_and_mistakes)(state.model, images, labels, recipe, step)
    state.optimiser.zero_grad(set_to_none=True)
    loss.backward(ones_of(loss))
    if recipe.grad_clip:
        clip_gradients(state.model, recipe.grad_clip, stacked=isinstance(state.model, ModelStack))
    state.optimiser.step()
    return loss.detach(), wrong


@torch.no_grad()
def average(state: State, decay: float | Tensor) -> None:
    """Moves the averaged weights towards the model's."""
    for name, parameter in state.model.named_parameters():
        state.averaged[name].lerp_(parameter, 1 - decay)


def _young_decay(step: int) -> float:
    # Early on a short average: else the first, random weights would weigh for long.
    return (1 + step) / (10 + step)


def _tensors(state: State, step: Tensor) -> dict[str, Tensor]:
    """Everything that a step changes, by name."""
    found = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    found |= {f"averaged.{name}": tensor for name, tensor in state.averaged.items()}
    for index, slots in state.optimiser.state_dict()["state"].items():
        found |= {f"optimiser.{index}.{name}": tensor for name, tensor in slots.items()}
    return {**found, "step": step}


def _snapshot(state: State, step: Tensor) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in _tensors(state, step).items()}


@torch.no_grad()
def _put_back(state: State, step: Tensor, before: dict[str, Tensor]) -> None:
    for name, tensor in _tensors(state, step).items():
        if name in before:
            tensor.copy_(before[name])
        else:  # optimisers make their averages in the first step; before it they are zero
            tensor.zero_()
