"""Does each network of the zoo learn at all? A short training of each on a CPU, before time on a GPU is spent on it.

    PYTHONPATH=src python benchmarks/zoo_learns.py results/zoo/learns-cpu.json [--only 'capsnet*' frms] [--seconds 90]

Takes about `--seconds` a network, 15 minutes in all on one core. Every network on MNIST by its own recipe (loss,
optimiser, peak learning rate, augmentation), but in small batches, for few steps and without the fall of the rate; the
spread loss's margin and the warm-up shrink to these steps. Networks of matrix capsules are narrower. The
test set is not read: accuracy is that on training images held out. It says that gradients arrive and that the rate is
not too high, not how good a network is. "dead" are parameters without a gradient in the tenth step.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import time
from pathlib import Path
from typing import Any

import torch

from purecaps import data
from purecaps.data import Dataset
from purecaps.files import atomic_write
from purecaps.models.registry import build_model
from purecaps.provenance import versions
from purecaps.train.checkpoint import State
from purecaps.train.loop import validate
from purecaps.train.optimiser import make_optimiser
from purecaps.train.prepare import prepare, some_of
from purecaps.train.recipes import RECIPES
from purecaps.train.step import EagerStepper

IMAGES, HELD_OUT = 20_000, 500
FEW = 10  # steps to a look at the clock, and after which gradients are looked at
# Model, recipe, batch, most steps, options: sizes that a core takes a few hundred steps of in a minute or two.
NETWORKS: tuple[tuple[str, str, int, int, dict[str, Any]], ...] = (
    ("capsnet_dr", "capsnet_dr", 16, 300, {}),
    ("capsnet_dr1", "capsnet_dr", 16, 300, {}),
    ("capsnet_em", "capsnet_em", 16, 300, {"widths": (32, 16, 16, 16)}),
    ("capsnet_vb", "capsnet_vb", 16, 300, {"widths": (32, 4, 8, 8)}),
    ("dcnet", "dcnet", 16, 300, {}),
    ("dcnetpp", "dcnetpp", 16, 300, {}),
    ("attncaps", "attncaps", 16, 300, {}),
    ("mscaps", "mscaps", 16, 300, {}),
    ("frms", "frms", 16, 300, {"capsules": 8}),
    ("frem", "frem", 16, 300, {"capsules": 8}),
    ("efficient_capsnet", "efficient_capsnet", 16, 600, {}),
    ("idpa_capsnet", "idpa", 16, 300, {"capsules": 8}),
)


def learn(
    images: Dataset, model: str, recipe_name: str, batch: int, steps: int, options: dict[str, Any], seconds: float
) -> dict[str, Any]:
    """What becomes of a network in `steps` steps, or as many as there is time for."""
    recipe = RECIPES[recipe_name].replace(batch_size=batch, steps=steps, schedule="constant", val_size=HELD_OUT)
    prepared = prepare(images, recipe, seeds=[0], device="cpu")
    assert prepared.val is not None
    torch.manual_seed(0)
    given = {**recipe.model_options(), **prepared.model_options, **options}
    network = build_model(model, prepared.train.in_shape, images.num_classes, given)
    stepper = EagerStepper(State(network, make_optimiser(network, recipe), {}), prepared.train, recipe)
    losses: list[float] = []
    dead: list[str] = []
    begun = time.perf_counter()
    while len(losses) < steps and time.perf_counter() - begun < seconds:
        window = stepper(len(losses), min(len(losses) + FEW, steps), lambda step: True)[0]
        losses += window.tolist()
        if not window.isfinite().all():
            break
        if len(losses) == FEW:
            gradients = [(name, parameter.grad) for name, parameter in network.named_parameters()]
            dead = [name for name, gradient in gradients if gradient is None or not gradient.any()]
    taken = time.perf_counter() - begun
    return {
        "model": model, "options": options, "recipe": recipe_name, "lr": recipe.lr, "batch": batch,
        "parameters": sum(parameter.numel() for parameter in network.parameters()), "steps": len(losses),
        "seconds": round(taken, 1), "first_loss": losses[0], "last_loss": sum(losses[-FEW:]) / len(losses[-FEW:]),
        "accuracy": 100 - validate(network, prepared.val, recipe)["error"], "dead": dead,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns of model names")
    parser.add_argument("--seconds", type=float, default=90, help="the most that a training may take")
    options = parser.parse_args()
    mnist = data.load("mnist")
    images = dataclasses.replace(mnist, train=some_of(mnist.train, IMAGES))
    rows: list[dict[str, Any]] = []
    print(f"{'network':18} {'parameters':>10} {'steps':>5} {'batch':>5} {'s':>5}  {'loss':16} accuracy")
    for network in NETWORKS:
        if not any(fnmatch.fnmatch(network[0], pattern) for pattern in options.only):
            continue
        row = learn(images, *network, options.seconds)
        rows.append(row)
        with atomic_write(options.out) as temporary:
            found = {"versions": versions(torch.device("cpu")), "held_out": HELD_OUT, "rows": rows}
            temporary.write_text(json.dumps(found, indent=1) + "\n")
        print(
            f"{row['model']:18} {row['parameters']:10,} {row['steps']:5} {row['batch']:5} {row['seconds']:5.0f}  "
            f"{row['first_loss']:.3f} -> {row['last_loss']:.3f} {row['accuracy']:8.1f} %"
            + (f"  dead: {', '.join(row['dead'])}" if row["dead"] else ""),
            flush=True,
        )


if __name__ == "__main__":
    main()
