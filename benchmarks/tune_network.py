"""Which launch is fastest for a whole network in one kernel? The answers are for `plan` in ops/triton/network.py.

    python benchmarks/tune_network.py [--models pcapsnet1,pcapsnet2] [--batch 65536] [--budget 240] [--json FILE]

Needs a CUDA device. Times the kernel in float16, bytes in and class out, under launches that differ in images a program
takes, warps, matrices held in shared memory and programs a multiprocessor. None is timed before its classes are those
of the float64 network. `purecaps bench --modes inference` sets the chosen launch beside what a user would pick instead.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from triton.runtime.errors import OutOfResources

from purecaps.experiments.bench import parity, timing
from purecaps.experiments.bench.case import Case
from purecaps.experiments.bench.subjects import registered
from purecaps.experiments.run import versions
from purecaps.inference import PRECISIONS, _pixel_map, _stages
from purecaps.ops.triton.bands import make_bands
from purecaps.ops.triton.network import Launch, launch_network, plan

DEVICE = torch.device("cuda")
ROUNDS = 5
HELD = ((2,), (), (1, 2), (2, 3), (1, 2, 3))
# Images, warps and programs a multiprocessor.
SHAPES = ((16, 4, 2), (16, 8, 1), (32, 8, 1), (8, 8, 1), (8, 4, 2), (8, 4, 1), (16, 4, 1), (16, 4, 8), (32, 16, 1))


def sweep(name: str, batch: int, until: float) -> list[dict[str, Any]]:
    """Images a second under every launch that fits the device, until time is up."""
    case = Case(registered(name), "inference", batch, DEVICE, "tf32")
    network = case.build("conv", torch.float32)
    bands = make_bands(_stages(network), network.in_shape, PRECISIONS["fp16"])
    scale, shift = _pixel_map(network, bands.matrices[0].shape[1])
    byte_scale, planned = scale / 255, plan(bands)
    others = [Launch(count, warps, hold, programs) for hold in HELD for count, warps, programs in SHAPES]
    rows: list[dict[str, Any]] = []
    for launch in [planned, *(launch for launch in others if launch != planned)]:
        if time.monotonic() > until:
            print(f"{name}: the budget is spent")
            break

        def run(launch: Launch = launch) -> Tensor:
            return launch_network(case.images, bands, byte_scale, shift, "ieee", classes=True, launch=launch)

        try:
            parity.require_classes(run(), case.truth, "fp16")
        except OutOfResources as error:
            print(f"{launch}: {error}")
            continue
        fastest = min(timing.milliseconds(run, DEVICE) for _ in range(ROUNDS))
        rows.append(
            {
                "model": name, "batch": batch, "launch": vars(launch), "planned": launch == planned,
                "images_per_s": batch / fastest * 1e3, "n": ROUNDS,
            }
        )  # fmt: skip
        print(f"{name} {batch} {launch}: {batch / fastest / 1e3:.2f} M images/s", flush=True)
    return sorted(rows, key=lambda row: -row["images_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="pcapsnet1,pcapsnet2,pcapsnet3")
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--budget", type=float, default=240, help="seconds after which no launch is tried")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    assert torch.cuda.is_available(), "expected a CUDA device"
    until = time.monotonic() + options.budget
    record: dict[str, Any] = {"versions": versions(DEVICE), "rows": []}
    for name in options.models.split(","):
        record["rows"] += sweep(name, options.batch, until)
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n")
    for row in record["rows"]:
        print(f"{row['model']:10} {row['images_per_s'] / 1e6:8.2f} M images/s  {row['launch']}")


if __name__ == "__main__":
    main()
