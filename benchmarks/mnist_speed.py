"""How long does it take to train on MNIST on a GPU: the paper's whole schedule, and from nothing to 99 %?

    python benchmarks/mnist_speed.py OUT.json [--choose] [--seeds 20] [--precisions tf32,bf16]

Schedule: pcapsnet0 for the paper's 30,000 steps, test error at the end. 99 %: the short schedule below, once for each
of 20 seeds, and the mean test accuracy, which has to reach 99 %. Both times are wall clock from random weights to the
last step, data and step counter on the device, the step captured as a CUDA graph before ("warm-up"); reading the test
set is not in them. --choose compares short schedules on 5,000 held-out training images instead, several seeds each: so
the one below was chosen. The test set chooses nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import asdict
from typing import Any

import torch

from purecaps.data import Dataset, load
from purecaps.data.loader import DeviceLoader
from purecaps.models.registry import build_model
from purecaps.models.stack import ModelStack
from purecaps.provenance import versions
from purecaps.train import Recipe
from purecaps.train.arithmetic import arithmetic
from purecaps.train.checkpoint import State
from purecaps.train.optimiser import make_optimiser
from purecaps.train.prepare import prepare
from purecaps.train.recipes import PAPER
from purecaps.train.step import GraphStepper

DEVICE = torch.device("cuda")
SHORT = Recipe(
    steps=900, batch_size=128, lr=0.005, schedule="cosine", warmup=0.1, loss="cross_entropy", scale=20.0, init="caffe",
    precision="bf16", log_every=900,
)  # fmt: skip
NETWORK = "pcapsnet0"


def accuracy(model: torch.nn.Module, loader: DeviceLoader) -> float:
    with torch.no_grad():
        right = sum(int((model(images).argmax(1) == labels).sum()) for images, labels in loader.eval_batches(2500))
    return 100 * right / len(loader.labels)


def trained(name: str, recipe: Recipe, dataset: Dataset, seeds: list[int]) -> tuple[list[torch.nn.Module], Any, float]:
    """Networks, loaders, and the seconds that the steps took."""
    prepared = prepare(dataset, recipe, seeds=seeds, device=DEVICE)
    networks = []
    for seed in seeds:
        torch.manual_seed(seed)
        options = {**recipe.model_options(), **prepared.model_options, "impl": "triton"}
        networks.append(build_model(name, prepared.train.in_shape, 10, options))
    model = (networks[0] if len(seeds) == 1 else ModelStack(networks)).to(DEVICE)
    state = State(model, make_optimiser(model, recipe), {})
    with arithmetic(recipe.precision, DEVICE):
        stepper = GraphStepper(state, prepared.train, recipe, 0)
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for first in range(0, recipe.steps, recipe.log_every):
            stepper(first, min(first + recipe.log_every, recipe.steps), lambda step: True)
        torch.cuda.synchronize()
        took = time.perf_counter() - begun
    found = [model] if len(seeds) == 1 else model.unstack()
    return found, prepared, took


def choose(dataset: Dataset) -> list[dict[str, Any]]:
    rows = []
    base = SHORT.replace(val_size=5000)
    candidates = [
        (name, base.replace(steps=steps, log_every=steps, lr=lr, batch_size=batch))
        for name, steps, batch in (
            ("pcapsnet0", 400, 128), ("pcapsnet0", 600, 128), ("pcapsnet0", 900, 128), ("pcapsnet0", 400, 256),
            ("pcapsnet3", 800, 128), ("pcapsnet3", 1200, 128),
        )
        for lr in (0.005, 0.015)
    ]  # fmt: skip
    for name, recipe in candidates:
        networks, prepared, _ = trained(name, recipe, dataset, [100, 101, 102])
        scores = [accuracy(network.to(DEVICE), prepared.val) for network in networks]
        row = {"net": name, "steps": recipe.steps, "batch": recipe.batch_size, "lr": recipe.lr}
        row |= {"accuracies": scores, "mean": statistics.mean(scores)}
        rows.append(row)
        print(f"{name} {recipe.steps} x {recipe.batch_size} lr {recipe.lr}: {row['mean']:.2f}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--precisions", default="tf32,bf16")
    arguments = parser.parse_args()
    dataset = load("mnist")
    result: dict[str, Any] = {"versions": versions(DEVICE)}
    if arguments.choose:
        result["choose"] = choose(dataset)
    else:
        result["schedule"] = []
        for precision in arguments.precisions.split(","):
            recipe = PAPER.replace(precision=precision)
            networks, prepared, took = trained("pcapsnet0", recipe, dataset, [0])
            error = 100 - accuracy(networks[0].eval(), prepared.test)
            result["schedule"].append({"precision": precision, "seconds": took, "test_error": error})
            print(f"pcapsnet0, {recipe.steps} steps, {precision}: {took:.2f} s, test error {error:.2f} %", flush=True)
        runs = []
        for seed in range(arguments.seeds):
            networks, prepared, took = trained(NETWORK, SHORT, dataset, [seed])
            runs.append((took, accuracy(networks[0].eval(), prepared.test)))
        times, scores = zip(*runs, strict=True)
        result["to_99"] = {
            "network": NETWORK, "recipe": asdict(SHORT), "seconds": times, "accuracies": scores,
            "mean_seconds": statistics.mean(times), "mean_accuracy": statistics.mean(scores),
        }  # fmt: skip
        print(
            f"{NETWORK}, {SHORT.steps} steps, {SHORT.precision}, {len(runs)} seeds: {statistics.mean(times):.3f} s +- "
            f"{statistics.stdev(times):.3f}, test accuracy {statistics.mean(scores):.3f} +- "
            f"{statistics.stdev(scores):.3f} %"
        )
    with open(arguments.out, "w", encoding="utf-8") as file:
        json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
