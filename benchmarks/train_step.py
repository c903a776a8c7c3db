"""How long does a whole training step take on a GPU? Sampling, augmentation, forward, backward, Adam: one CUDA graph.

    python benchmarks/train_step.py [--models pcapsnet0,pcapsnet2] [--seeds 10] [--json FILE]

Sets side by side, in one run: the conv2d reduction operation by operation, the same as a CUDA graph, torch.compile of
it inside a CUDA graph, and the fused kernels. Before a variant is timed, its first losses must agree with those of
the conv2d reduction. Data is random; only time is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import nn

from purecaps.data import Split
from purecaps.data.loader import DeviceLoader
from purecaps.data.transforms import parse
from purecaps.experiments.run import versions
from purecaps.models import create_model
from purecaps.models.stack import ModelStack
from purecaps.train import Recipe
from purecaps.train.checkpoint import State
from purecaps.train.step import EagerStepper, GraphStepper, Stepper, arithmetic, make_optimiser

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


def compiled(state: State) -> State:
    model = state.model
    forward: Callable[..., torch.Tensor] = torch.compile(model, fullgraph=True)

    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return forward(images)

    wrapped = Compiled()
    return State(wrapped, state.optimiser, {})


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
    parser.add_argument("--variants", default="eager,conv,compile,triton")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json")
    arguments = parser.parse_args()
    device = torch.device("cuda")
    rows = []
    for name in arguments.models.split(","):
        recipe = recipe_for(name)
        truth: list[float] = []
        with arithmetic(recipe, device):
            for variant in arguments.variants.split(","):
                state = make_state(name, recipe, "triton" if variant == "triton" else "conv", 1)
                loader = make_loader(name, recipe, 1)
                if variant == "compile":
                    state = compiled(state)
                eager = variant == "eager"
                stepper = EagerStepper(state, loader, recipe) if eager else GraphStepper(state, loader, recipe, 0)
                torch.cuda.reset_peak_memory_stats()
                losses, times = measure(stepper, 3 if eager else 20)
                truth = truth or losses
                off = max(abs(a - b) / abs(b) for a, b in zip(losses[:10], truth[:10], strict=True))
                peak = torch.cuda.max_memory_allocated() / 2**20
                row = {
                    "model": name,
                    "batch": recipe.batch_size,
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
