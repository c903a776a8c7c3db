"""How long does a whole training step take on a GPU? Sampling, augmentation, forward, backward, Adam: one CUDA graph.

    python benchmarks/train_step.py [--models pcapsnet0,pcapsnet2] [--precision tf32] [--variants conv,triton]
        [--seeds 10] [--json FILE]

Sets side by side, in one run: the conv2d reduction operation by operation ("eager"), the same as a CUDA graph ("conv"),
torch.compile of network and loss inside a CUDA graph ("compile"), the same on one batch over and over, so without
sampling and augmentation ("compile: one batch"), and ours ("triton"). None of the others uses a kernel of this library:
they sample with torch's operations and step with torch's fused Adam. Before a variant counts, its first losses must
agree with those of the conv2d reduction. Data is random; only time is measured.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from unittest import mock

import torch

from purecaps.data import Split
from purecaps.data.loader import DeviceLoader
from purecaps.data.transforms import parse
from purecaps.experiments.run import versions
from purecaps.models import create_model
from purecaps.models.stack import ModelStack
from purecaps.train import Recipe
from purecaps.train.arithmetic import arithmetic
from purecaps.train.checkpoint import State
from purecaps.train.optimiser import make_optimiser
from purecaps.train.step import EagerStepper, GraphStepper, Stepper

BATCH = {"pcapsnet4": 256}
WINDOW = 100


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


def measure(stepper: Stepper, windows: int) -> tuple[list[float], list[float]]:
    """The first losses, and milliseconds a step of each window."""
    losses = stepper(0, WINDOW, lambda step: True)[0]
    times = []
    for window in range(1, windows + 1):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        stepper(window * WINDOW, (window + 1) * WINDOW, lambda step: True)
        times.append((time.perf_counter() - begun) / WINDOW * 1e3)
    return losses.flatten().tolist(), times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="pcapsnet0,pcapsnet2,pcapsnet4")
    parser.add_argument("--variants", default="eager,conv,compile,compile: one batch,triton")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    device = torch.device("cuda")
    rows = []
    for name in arguments.models.split(","):
        recipe = recipe_for(name).replace(precision=arguments.precision)
        truth: list[float] = []
        with arithmetic(recipe.precision, device):
            for variant in arguments.variants.split(","):
                state = make_state(name, recipe, "triton" if variant.startswith("triton") else "conv", 1)
                torch.cuda.reset_peak_memory_stats()
                stepper = make_stepper(variant, state, make_loader(name, recipe, 1), recipe)
                losses, times = measure(stepper, 3 if variant == "eager" else 20)
                truth = truth or losses
                off = max(abs(a - b) / abs(b) for a, b in zip(losses[:10], truth[:10], strict=True))
                peak = torch.cuda.max_memory_allocated() / 2**20
                row = {
                    "model": name,
                    "batch": recipe.batch_size,
                    "precision": recipe.precision,
                    "variant": variant,
                    "ms": statistics.median(times),
                    "spread": max(times) - min(times),
                    "off": off,
                    "MiB": peak,
                }
                rows.append(row)
                print(json.dumps(row), flush=True)
            if arguments.seeds > 1:
                stack = make_state(name, recipe, "triton", arguments.seeds)
                stepper = GraphStepper(stack, make_loader(name, recipe, arguments.seeds), recipe, 0)
                times = measure(stepper, 10)[1]
                row = {"model": name, "variant": f"triton, {arguments.seeds} seeds", "ms": statistics.median(times)}
                rows.append(row)
                print(json.dumps(row), flush=True)
    result = {"versions": versions(device), "rows": rows}
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    print(json.dumps(result["versions"]))
    for row in rows:
        print(f"{row['model']:10} {row['variant']:16} {row['ms']:8.3f} ms  off {row.get('off', 0):.1e}")


if __name__ == "__main__":
    main()
