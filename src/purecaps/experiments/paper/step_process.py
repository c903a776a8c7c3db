"""A process that gets one network's training step ready, waits until it has the device to itself, and times it.

Images are random, as many as the data set has: nothing depends on what they show, and memory holds what it does in
training. `step_sitting` starts these processes; their files lie beside the one that says what to time.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from purecaps.data.types import Dataset, Split
from purecaps.experiments.paper.system import SHAPES
from purecaps.files import atomic_write
from purecaps.train.arithmetic import arithmetic
from purecaps.train.config import RunConfig
from purecaps.train.loop import Trainer
from purecaps.train.recipe import Recipe
from purecaps.train.start import side_by_side
from purecaps.train.step import Stepper, make_stepper

SIZES = {"mnist": (60_000, 10_000), "cifar10": (50_000, 10_000)}
SETTLING = 0.4  # seconds that count for nothing: what the stopped processes have launched is still computed
LEAST_SECONDS, LEAST_WINDOWS = 0.5, 5
WINDOW, WINDOW_SECONDS = 50, 0.05  # between two looks at the clock: at most so many steps, about so long
READY, GO, FOUND = ".ready", ".go", ".found"  # files: gets no more ready; may be timed; what it took


def random_images(data: str, count: int | None) -> Dataset:
    """A data set of that one's size, or with no more than `count` images in each split."""
    generator = torch.Generator().manual_seed(0)

    def split(size: int) -> Split:
        size = size if count is None else min(size, count)
        images = torch.randint(0, 256, (size, *SHAPES[data]), dtype=torch.uint8, generator=generator)
        return Split(images, torch.arange(size) % 10)

    train, test = map(split, SIZES[data])
    return Dataset(data, train, test, tuple(map(str, range(10))))


def stepper_of(asked: Mapping[str, Any], device: torch.device, out: Path) -> tuple[Stepper, Recipe, int]:
    """The stepper of a training, its recipe, and how many networks it trains at once."""
    recipe = Recipe.from_dict(asked["recipe"]).replace(log_every=WINDOW)
    dataset = random_images(asked["data"], asked["images"])
    config = RunConfig(asked["model"], asked["data"], "some", recipe, 0, asked["networks"])
    if config.seeds > 1 and not side_by_side(config, dataset, device):
        config = RunConfig(asked["model"], asked["data"], "some", recipe)
    trainer = Trainer(config, dataset, out, device=device)
    trainer.meter.forget_peak()  # as a training does, so that both say the same of memory
    loader = trainer.prepared.train
    return make_stepper(trainer.state, loader, recipe, 0, graph=None, compile=asked["compiled"]), recipe, config.seeds


class Clock:
    """Times windows of steps, which begin anew where the recipe ends."""

    def __init__(self, stepper: Stepper, steps: int) -> None:
        self.stepper, self.steps, self.at, self.count = stepper, steps, 0, 1

    def window(self) -> float:
        """Milliseconds a step."""
        count = min(self.count, self.steps)
        if self.at + count > self.steps:
            self.at = 0
        begun = time.perf_counter()
        self.stepper(self.at, self.at + count, lambda step: True)  # returns losses, so that the device is done
        each = (time.perf_counter() - begun) / count
        self.at, self.count = self.at + count, min(max(1, round(WINDOW_SECONDS / each)), WINDOW)
        return 1e3 * each

    def windows(self, seconds: float, least: int) -> list[float]:
        begun, found = time.perf_counter(), [self.window()]
        while len(found) < least or time.perf_counter() - begun < seconds:
            found.append(self.window())
        return found


def await_turn(go: Path) -> None:
    """Returns once it may be timed; ends with whoever started it."""
    parent = os.getppid()
    while not go.exists():
        if os.getppid() != parent:
            sys.exit("whoever started this is gone")
        time.sleep(0.02)


def main() -> None:
    file = Path(sys.argv[1])
    asked = json.loads(file.read_text())
    device, begun = torch.device(asked["device"]), time.monotonic()
    with arithmetic(asked["recipe"]["precision"], device):
        stepper, recipe, networks = stepper_of(asked, device, file.with_suffix(".run"))
        clock = Clock(stepper, recipe.steps)
        clock.window()
        with atomic_write(file.with_suffix(READY)) as temporary:
            temporary.write_text(json.dumps([begun, time.monotonic()]))
        await_turn(file.with_suffix(GO))
        clock.windows(SETTLING, 1)
        times = clock.windows(LEAST_SECONDS, LEAST_WINDOWS)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else None
    found = {
        "networks": networks,
        "batch": recipe.batch_size,
        "ms": statistics.median(times),
        "spread_ms": max(times) - min(times),
        "peak_memory_bytes": peak,
    }
    with atomic_write(file.with_suffix(FOUND)) as temporary:
        temporary.write_text(json.dumps(found))
    os._exit(0)  # others wait for the memory; an orderly end takes a second


if __name__ == "__main__":
    main()
