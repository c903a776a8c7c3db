"""Who is in the zoo: networks of other authors, the paper's and plain ones, and what a training of one of them cost."""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from purecaps.experiments.paper import cifar, mnist, table3, targets
from purecaps.experiments.paper.job import Record
from purecaps.experiments.paper.scale import FULL, Scale
from purecaps.experiments.paper.steps import measured
from purecaps.experiments.paper.system import System, size_of
from purecaps.experiments.paper.systems import CIFAR_MORE, MNIST_MORE, SABOUR, TABLE1, TABLE3
from purecaps.experiments.paper.trade_offs import PLAIN, PURE, ROUTED
from purecaps.experiments.paper.training import TrainingJob
from purecaps.experiments.paper.verdict import Published

LEAST_SECONDS = 0.1  # records have tenths of a second, so that a tiny training may have none
OTHERS = {"mnist": (*TABLE1, *MNIST_MORE), "cifar10": (*TABLE3, *CIFAR_MORE)}


@dataclass(frozen=True)
class Contender:
    """A network of the zoo.

    Args:
        text: what the table calls it.
        label: what the picture calls it; nothing where it is not drawn.
        family: what it is.
        job: its training, at a scale.
        error: what was published of it, in percent.
        parameters: likewise.
        steps_text: from our steps to those beside the authors'.
    """

    text: str
    label: str
    family: str
    job: Callable[[Scale], TrainingJob]
    error: Published | None
    parameters: float | None
    steps_text: Callable[[int], str] = "{:,}".format

    @functools.cached_property
    def full(self) -> TrainingJob:
        return self.job(FULL)

    @property
    def sizes(self) -> tuple[int, int]:
        """Its parameters, without and with the decoder."""
        return size_of(self.full.model, self.full.data, self.full.recipe.augment)


@dataclass(frozen=True)
class Cost:
    """What the training of one network took.

    Args:
        seconds: of all steps.
        ms: milliseconds a step.
        memory: bytes at most; None where it is not known.
        at_once: how many were trained side by side, whose shares these are.
        apart: whether a measurement of its steps says so, and not the training itself.
        memory_apart: likewise of memory alone.
    """

    seconds: float
    ms: float
    memory: float | None
    at_once: int
    apart: bool = False
    memory_apart: bool = False


def cost_of(record: Record, hardware: str, steps: Record | None = None) -> Cost | None:
    """What its seeds took on that hardware, a mean over them; None where none was trained there.

    Args:
        record: of a training.
        hardware: where.
        steps: the record of steps measured alone. It has the word where the training shared the device, or knows of no
            memory; without it, such a training has no cost.
    """
    there = [part for part in record["parts"] if _machine(part) == hardware]
    if not there:
        return None
    row = None
    if steps is not None:
        found = measured(steps, record["what"], record["job"], compiled=bool(there[-1].get("compiled")))
        row = next((each for each in found if each["hardware"] == hardware), None)
    memory = None if row is None or row["peak_memory_bytes"] is None else row["peak_memory_bytes"] / row["networks"]
    own = _own_cost(record, [part for part in there if not part.get("beside_others")])
    if own is not None:
        known = own.memory is not None or memory is None
        return own if known else dataclasses.replace(own, memory=memory, memory_apart=True)
    if row is None:
        return None
    ms = row["ms"] / row["networks"]
    return Cost(ms * record["what"]["recipe"]["steps"] / 1e3, ms, memory, row["networks"], True, memory is not None)


def _own_cost(record: Record, parts: Sequence[Record]) -> Cost | None:
    """By what a training that had the device for itself says."""
    if not parts:
        return None
    steps = record["what"]["recipe"]["steps"]
    seconds, paces, peaks = [], [], []
    at_once = [part.get("side_by_side", len(part["seeds"])) for part in parts]
    for part, networks in zip(parts, at_once, strict=True):
        seeds = len(part["seeds"])
        alone = max(part["train_seconds"], LEAST_SECONDS) / seeds
        pace = part.get("seconds_per_step")
        seconds += seeds * [alone]
        paces += seeds * [alone / steps if pace is None else pace / networks]
        if part.get("peak_memory_bytes") is not None:
            peaks.append(part["peak_memory_bytes"] / networks)
    return Cost(statistics.mean(seconds), 1e3 * statistics.mean(paces), max(peaks, default=None), max(at_once))


def shared_hardware(records: Iterable[Record]) -> str | None:
    """What most of these were trained on: times on other hardware are not to be set beside theirs."""
    counted = Counter(hardware for record in records for hardware in {_machine(part) for part in record["parts"]})
    return max(sorted(counted), key=counted.__getitem__, default=None)


def _machine(part: Record) -> str:
    hardware: str = part["versions"]["hardware"]
    return hardware


def contenders(data: str) -> list[Contender]:
    """All networks on a data set: other authors', the paper's, plain ones."""
    return [*map(_other, OTHERS[data]), *(_mnist() if data == "mnist" else _cifar())]


def _other(each: System) -> Contender:
    family = PLAIN if each.recipe == "cnn" else ROUTED
    return Contender(each.text, each.label, family, each.job, each.error, each.parameters, each.steps_text)


def _mnist() -> list[Contender]:
    found = [
        Contender(
            f"{model}, {mnist.RECIPE_TEXT[recipe]}",
            model if recipe == "paper" else "",
            PURE,
            functools.partial(mnist.job_of, model, recipe),
            mnist.PAPER[model],
            mnist.PARAMETERS[model],
        )
        for model in mnist.PAPER
        for recipe in ("paper", "best")
    ]
    baseline = Published(0.39, None, SABOUR)
    return [
        *found,
        Contender("CNN baseline", "CNN baseline", PLAIN, targets.baseline, baseline, 35.4e6),
        Contender("LeNet", "LeNet", PLAIN, targets.lenet, None, None),
    ]


def _cifar() -> list[Contender]:
    return [
        Contender(
            f"pcapsnet4, {table3.RUNS[run][0]}",
            "pcapsnet4" if run == "paper" else "",
            PURE,
            functools.partial(table3.job_of, run),
            cifar.PAPER,
            cifar.PARAMETERS,
        )
        for run in ("paper", "best")
    ]
