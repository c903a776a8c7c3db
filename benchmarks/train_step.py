"""How long does a whole training step take on a GPU? Sampling, augmentation, forward, backward, Adam: one CUDA graph.

    python benchmarks/train_step.py [--models pcapsnet0,pcapsnet2] [--precision tf32] [--variants conv,triton]
        [--seeds 10] [--json FILE]

Sets side by side, in one run: the conv2d reduction operation by operation ("eager"), the same as a CUDA graph ("conv"),
torch.compile of network and loss inside a CUDA graph ("compile"), the same on one batch over and over, so without
sampling and augmentation ("compile: one batch"), and ours ("triton"). None of the others uses a kernel of this library:
they sample with torch's operations and step with torch's fused Adam. Before a variant is timed, its first losses must
agree with those of "conv", which is always among them; else its row says that it was refused, and the command fails
after the rest. "One batch" and several seeds see other images: they are not checked, and say so. Data is random; only
time is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from purecaps.data import Split
from purecaps.data.loader import DeviceLoader
from purecaps.data.transforms import parse
from purecaps.files import write_json
from purecaps.models import create_model
from purecaps.models.stack import ModelStack
from purecaps.provenance import versions
from purecaps.train import Recipe
from purecaps.train.arithmetic import arithmetic
from purecaps.train.checkpoint import State
from purecaps.train.optimiser import make_optimiser
from purecaps.train.step import EagerStepper, GraphStepper, Stepper

BATCH = {"pcapsnet4": 256}
WINDOW = 100
COMPARED = 10  # losses; later ones part by rounding alone
# How far they may be off: three to five times what was seen (fp32 2.1e-4 on a CPU; TF32 3.2e-3 and bf16 1.1e-2 on an
# H200). On other images they were off by 5e-2 and more.
TOLERANCES = {"fp32": 1e-3, "tf32": 1e-2, "bf16": 3e-2}
TRUTH = "conv"


def recipe_for(name: str) -> Recipe:
    augment = ("crop:24", "flip") if name == "pcapsnet4" else ("shift:2",)
    return Recipe(steps=100_000, batch_size=BATCH.get(name, 128), augment=augment, log_every=WINDOW, precision="tf32")


def make_state(name: str, recipe: Recipe, impl: str, seeds: int) -> State:
    networks = []
    for seed in range(seeds):
        torch.manual_seed(seed)
        networks.append(create_model(name, impl=impl))
    model = (networks[0] if seeds == 1 else ModelStack(networks)).cuda()
    return State(model, make_optimiser(model, recipe), {})


def make_loader(name: str, recipe: Recipe, seeds: int) -> DeviceLoader:
    shape = (3, 32, 32) if name == "pcapsnet4" else (1, 28, 28)
    images = torch.randint(0, 256, (10_000, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    seed: int | Sequence[int] = 0 if seeds == 1 else range(seeds)
    labels = torch.arange(10_000) % 10
    return DeviceLoader(
        Split(images, labels), recipe.batch_size, seed=seed, augment=parse(recipe.augment), device="cuda"
    )


@contextlib.contextmanager
def without_our_kernels() -> Iterator[None]:
    """The same step from torch's operations alone."""
    with mock.patch("purecaps.ops.triton.missing", return_value="left out"):
        yield


def make_stepper(variant: str, state: State, loader: DeviceLoader, recipe: Recipe) -> Stepper:
    if variant.startswith("triton"):
        return GraphStepper(state, loader, recipe, 0)
    with without_our_kernels():
        if variant == "eager":
            return EagerStepper(state, loader, recipe)
        if "one batch" in variant:
            batch = loader.batch(0)
            loader.take_in_order = lambda order, step: batch  # type: ignore[method-assign]
        torch._dynamo.reset()
        return GraphStepper(state, loader, recipe, 0, compile=variant.startswith("compile"))


def first_losses(stepper: Stepper) -> list[float]:
    found: list[float] = stepper(0, WINDOW, lambda step: True)[0].flatten().tolist()
    return found


def milliseconds(stepper: Stepper, windows: int) -> list[float]:
    """A step's, of each window after the first."""
    times = []
    for window in range(1, windows + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        stepper(window * WINDOW, (window + 1) * WINDOW, lambda step: True)
        times.append((time.perf_counter() - begun) / WINDOW * 1e3)
    return times


def ordered(variants: Sequence[str]) -> list[str]:
    """The conv2d reduction first, asked for or not: the others are held against it."""
    return [TRUTH, *(variant for variant in variants if variant != TRUTH)]


def checked(variant: str, losses: Sequence[float], truth: Sequence[float], precision: str) -> dict[str, Any]:
    """What a row says of a variant's first losses: how far they are off, and why it is refused or not checked."""
    pairs = list(zip(losses[:COMPARED], truth[:COMPARED], strict=True))
    if not all(math.isfinite(number) for pair in pairs for number in pair):
        return {"off": None, "refused": "its first losses or those of conv are not finite"}
    off = max(abs(own - true) / abs(true) for own, true in pairs)
    if "one batch" in variant:
        return {"off": off, "unchecked": "sees other images than conv"}
    if off > TOLERANCES[precision]:
        return {
            "off": off,
            "refused": f"its first losses are off by {off:.1e}, at most {TOLERANCES[precision]:g} expected",
        }
    return {"off": off}


def row_of(name: str, variant: str, recipe: Recipe, truth: list[float]) -> dict[str, Any]:
    """A variant, timed if it is right; fills the truth, where there is none yet."""
    state = make_state(name, recipe, "triton" if variant.startswith("triton") else "conv", 1)
    torch.cuda.reset_peak_memory_stats()
    stepper = make_stepper(variant, state, make_loader(name, recipe, 1), recipe)
    losses = first_losses(stepper)
    truth[:] = truth or losses
    check = checked(variant, losses, truth, recipe.precision)
    times = [] if "refused" in check else milliseconds(stepper, 3 if variant == "eager" else 20)
    return {
        "model": name,
        "batch": recipe.batch_size,
        "precision": recipe.precision,
        "variant": variant,
        "ms": statistics.median(times) if times else None,
        "spread": max(times) - min(times) if times else None,
        "MiB": torch.cuda.max_memory_allocated() / 2**20,
        **check,
    }


def row_of_seeds(name: str, seeds: int, recipe: Recipe) -> dict[str, Any]:
    stack = make_state(name, recipe, "triton", seeds)
    stepper = GraphStepper(stack, make_loader(name, recipe, seeds), recipe, 0)
    first_losses(stepper)
    ms = statistics.median(milliseconds(stepper, 10))
    return {"model": name, "variant": f"triton, {seeds} seeds", "ms": ms, "unchecked": "several seeds"}


def rows_of(name: str, variants: Sequence[str], recipe: Recipe, seeds: int) -> Iterator[dict[str, Any]]:
    truth: list[float] = []
    for variant in ordered(variants):
        yield guarded(partial(row_of, name, variant, recipe, truth), name, variant)
    if seeds > 1:
        yield guarded(partial(row_of_seeds, name, seeds, recipe), name, f"triton, {seeds} seeds")


def guarded(make: Callable[[], dict[str, Any]], name: str, variant: str) -> dict[str, Any]:
    """A row, or one that says what broke: whatever a compiler throws, the others are to be timed."""
    try:
        return make()
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        return {"model": name, "variant": variant, "ms": None, "refused": f"{type(error).__name__}: {why}"}


def line(row: dict[str, Any]) -> str:
    time_of_step = "       -   " if row["ms"] is None else f"{row['ms']:8.3f} ms"
    off = "" if row.get("off") is None else f"off {row['off']:.1e}"
    why = next((f"{kind}: {row[kind]}" for kind in ("refused", "unchecked") if kind in row), "")
    return f"{row['model']:10} {row['variant']:18} {time_of_step}  {off:11}  {why}".rstrip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="pcapsnet0,pcapsnet2,pcapsnet4")
    parser.add_argument("--variants", default="eager,conv,compile,compile: one batch,triton")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    device = torch.device("cuda")
    result: dict[str, Any] = {"versions": versions(device), "rows": []}
    for name in arguments.models.split(","):
        recipe = recipe_for(name).replace(precision=arguments.precision)
        with arithmetic(recipe.precision, device):
            for row in rows_of(name, arguments.variants.split(","), recipe, arguments.seeds):
                result["rows"].append(row)
                print(json.dumps(row), flush=True)
                if arguments.json:
                    write_json(arguments.json, result)
    print(json.dumps(result["versions"]))
    for row in result["rows"]:
        print(line(row))
    sys.exit(1 if any("refused" in row for row in result["rows"]) else 0)


if __name__ == "__main__":
    main()
