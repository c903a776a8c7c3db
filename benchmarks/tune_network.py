"""Which launch is fastest for a whole network in one kernel? The answers are for `plan` in ops/triton/network.py.

    PYTHONPATH=src python benchmarks/tune_network.py [--models pcapsnet1,pcapsnet2] [--batch 65536] [--json FILE]

Needs a CUDA device. Launches differ in images that a program takes, warps, matrices held in shared memory, registers
and programs a multiprocessor. Each is first compiled and run in a process of its own, where a fault ends nothing else:
its lengths and its classes must be those of the float64 network. Those that pass are then timed one after the other,
in float16, bytes in and class out.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purecaps.experiments.bench import parity
from purecaps.experiments.bench.case import Case
from purecaps.experiments.bench.subjects import registered
from purecaps.experiments.run import versions
from purecaps.inference import PRECISIONS, _pixel_map, _stages
from purecaps.ops.triton.bands import make_bands
from purecaps.ops.triton.network import Launch, launch_network, plan

DEVICE = torch.device("cuda")
ROUNDS = 5
HELD = ((1, 2, 3, 4), (1, 2), (1, 2, 4), ())
IMAGES = (4, 2, 8)
WARPS = (4, 8, 2, 1)
REGISTERS = (None, 168, 128)
PROGRAMS = (1, 2, 3, 4, 6, 8, 12)
LENGTHS_OFF = 2e-3  # what a length may be off in float16, as in tests/ops/network_cases.py


class Subject:
    """A network, images, and what it is to say of them."""

    def __init__(self, name: str, batch: int) -> None:
        self.case = Case(registered(name), "inference", batch, DEVICE, "tf32")
        network = self.case.build("conv", torch.float32)
        self.bands = make_bands(_stages(network), network.in_shape, PRECISIONS["fp16"])
        scale, self.shift = _pixel_map(network, self.bands)
        self.scale = scale / 255

    def run(self, launch: Launch, *, classes: bool = True) -> Tensor:
        return launch_network(
            self.case.images, self.bands, self.scale, self.shift, "ieee", classes=classes, launch=launch
        )

    def milliseconds(self, launch: Launch) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        self.run(launch)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    def require_right(self, launch: Launch) -> None:
        """Three times over, since a race may spare one run."""
        truth = self.case.truth
        for _ in range(3):
            off = (self.run(launch, classes=False).double() - truth.scores[truth.index]).abs().max().item()
            assert off <= LENGTHS_OFF, f"lengths {off:.1e} off"
            parity.require_classes(self.run(launch), truth, "fp16")


def launches() -> list[Launch]:
    """One for each kernel to compile; programs a multiprocessor change only the grid."""
    found = itertools.product(IMAGES, WARPS, HELD, REGISTERS)
    # Not eight images with four warps: see `plan`.
    return [Launch(images, warps, hold, 2, most) for images, warps, hold, most in found if images < 8 or warps < 4]


def try_apart(name: str, launch: Launch) -> str:
    """What a process of its own says of a launch; "right" where it is."""
    command = [sys.executable, __file__, "--check", json.dumps([name, vars(launch)])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        return "takes too long to compile"
    lines = (done.stdout + done.stderr).strip().splitlines()
    return "right" if done.returncode == 0 else lines[-1][:150] if lines else f"exit code {done.returncode}"


def check(text: str) -> None:
    name, fields = json.loads(text)
    Subject(name, 1000).require_right(Launch(**{**fields, "hold": tuple(fields["hold"])}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="pcapsnet2,pcapsnet1,pcapsnet3")
    parser.add_argument("--batch", type=int, default=65536)
    parser.add_argument("--budget", type=float, default=120, help="seconds after which no process is started")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    options = parser.parse_args()
    assert torch.cuda.is_available(), "expected a CUDA device"
    if options.check:
        check(options.check)
        return
    until = time.monotonic() + options.budget
    jobs = [(name, launch) for name in options.models.split(",") for launch in launches()]

    def outcome(job: tuple[str, Launch]) -> str:
        return try_apart(*job) if time.monotonic() < until else "the budget is spent"

    with ThreadPoolExecutor(options.workers) as pool:
        outcomes = list(pool.map(outcome, jobs))
    record: dict[str, Any] = {"versions": versions(DEVICE), "rows": [], "refused": []}
    subjects = {name: Subject(name, options.batch) for name in options.models.split(",")}
    for (name, launch), said in zip(jobs, outcomes, strict=True):
        if said != "right":
            record["refused"].append({"model": name, "launch": vars(launch), "why": said})
            continue
        for programs in PROGRAMS:
            chosen = Launch(launch.images, launch.warps, launch.hold, programs, launch.registers)
            fastest = min(subjects[name].milliseconds(chosen) for _ in range(ROUNDS))
            record["rows"].append(
                {
                    "model": name, "batch": options.batch, "launch": vars(chosen), "n": ROUNDS,
                    "planned": chosen == plan(subjects[name].bands), "images_per_s": options.batch / fastest * 1e3,
                }
            )  # fmt: skip
    record["rows"].sort(key=lambda row: (row["model"], -row["images_per_s"]))
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(jobs) - len(record['refused'])} of {len(jobs)} right")
    for why in sorted({row["why"] for row in record["refused"]}):
        print(f"  {sum(row['why'] == why for row in record['refused'])} x {why}")
    for name in subjects:
        for row in [row for row in record["rows"] if row["model"] == name][:6]:
            print(f"{name:10} {row['images_per_s'] / 1e6:8.2f} M images/s  {row['launch']}")


if __name__ == "__main__":
    main()
