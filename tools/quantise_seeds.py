"""What 8-bit integers cost a network, over the seeds of several runs.

    python tools/quantise_seeds.py runs/pcapsnet2-seed* --data mnist --out results/quant/pcapsnet2-mnist.json

Each run's network is quantised with the default calibration (training images only); the test set is then read once with
the network in float and in integers. --steps N takes N steps of quantisation-aware training before.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

import torch
from rich.console import Console

from purecaps import data
from purecaps.experiments.quantising import over_seeds
from purecaps.files import write_json
from purecaps.quant.training import LR
from purecaps.train.log import ConsoleWatcher


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs of one model with different seeds")
    parser.add_argument("--data", default="mnist", help="what they were trained on")
    parser.add_argument("--steps", type=int, default=0, help="steps of quantisation-aware training; 0 takes none")
    parser.add_argument("--lr", type=float, default=LR, help="their learning rate")
    parser.add_argument("--device", default="cpu", help="where to take them")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    arguments = parser.parse_args()
    watcher = ConsoleWatcher(Console(stderr=True)) if arguments.steps else None
    found = over_seeds(
        arguments.runs,
        data.load(arguments.data),
        aware_steps=arguments.steps,
        lr=arguments.lr,
        device=torch.device(arguments.device),
        watcher=watcher,
    )
    runs = [f"runs/{run.name}" for run in arguments.runs]  # wherever they lay
    options = [word for word in sys.argv[1:] if Path(word) not in arguments.runs]
    command = shlex.join(["python", "tools/quantise_seeds.py", *runs, *options])
    write_json(arguments.out, {"command": command, **found})
    console = Console(highlight=False)
    for row in found["runs"]:
        console.print(f"seed {row['seed']}: float {row['float_error']:.2f} %, int8 {row['int8_error']:.2f} %")
    lost = found["lost_points"]
    console.print(f"lost: {lost['mean']:+.3f} +- {lost['std']:.3f} points, at most {lost['max']:+.2f}: {arguments.out}")


if __name__ == "__main__":
    main()
