"""How long is a training step of each network of the zoo, how much memory does it take, what does torch.compile give?

    PYTHONPATH=src python benchmarks/zoo_steps.py OUT.json [--only 'table1/*'] [--workers 5] [--seconds 400]

Needs a CUDA device. Every network on its data set by its own recipe (batch size, augmentation, loss, optimiser), the
whole step as one CUDA graph, with and without torch.compile of network and loss. Each is a process of its own: they
get ready side by side and are timed one at a time, when none gets ready; so one that takes too long to is stopped.
apply_zoo_steps.py makes budgets of the answers.
Data is random; only time and memory are measured.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from purecaps.data import Split
from purecaps.data.loader import DeviceLoader
from purecaps.data.transforms import parse
from purecaps.experiments.bench import Turns
from purecaps.experiments.paper.scale import SCALES
from purecaps.experiments.paper.system import SHAPES, System
from purecaps.experiments.paper.systems import SYSTEMS
from purecaps.experiments.run import versions
from purecaps.models.registry import build_model
from purecaps.train.arithmetic import arithmetic
from purecaps.train.checkpoint import State
from purecaps.train.optimiser import make_optimiser
from purecaps.train.step import EagerStepper, GraphStepper, Stepper

WINDOW = 10  # steps between two looks at the clock
LEAST_SECONDS = 1.0
IMAGES = 2000
TIMING = 0.1  # of the time, at the end, when nothing gets ready any more


def stepper_of(system: System, device: torch.device, *, compiled: bool) -> tuple[Stepper, int]:
    """A training step of a network, and its batch size."""
    recipe = system.job(SCALES["full"]).recipe.replace(log_every=WINDOW)
    shape = SHAPES[system.data]
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (IMAGES, *shape), dtype=torch.uint8, generator=generator)
    loader = DeviceLoader(
        Split(images, torch.arange(IMAGES) % 10),
        recipe.batch_size,
        seed=0,
        augment=parse(recipe.augment),
        device=device,
    )
    torch.manual_seed(0)
    model = build_model(system.model, loader.in_shape, 10, recipe.model_options()).to(device)
    state = State(model, make_optimiser(model, recipe), {})
    if device.type == "cpu":
        return EagerStepper(state, loader, recipe), recipe.batch_size
    return GraphStepper(state, loader, recipe, 0, compile=compiled), recipe.batch_size


def measure(system: System, device: torch.device, turns: Turns, *, compiled: bool) -> dict[str, Any]:
    recipe = system.job(SCALES["full"]).recipe
    with arithmetic(recipe.precision, device):
        with turns.getting_ready():
            begun = time.perf_counter()
            stepper, batch = stepper_of(system, device, compiled=compiled)
            losses = stepper(0, WINDOW, lambda step: True)[0]
            ready = time.perf_counter() - begun
        times: list[float] = []
        with turns.timing():
            while sum(times) * WINDOW / 1e3 < LEAST_SECONDS or len(times) < 3:
                first = (len(times) + 1) * WINDOW
                begun = time.perf_counter()
                stepper(first, first + WINDOW, lambda step: True)
                times.append((time.perf_counter() - begun) / WINDOW * 1e3)
    peak = torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None
    return {
        "job": system.name, "model": system.model, "data": system.data, "batch": batch, "compiled": compiled,
        "ms": statistics.median(times), "spread": max(times) - min(times), "peak_mib": peak,
        "ready_s": ready, "first_losses": losses.flatten().tolist(),
    }  # fmt: skip


@dataclass(frozen=True)
class Limits:
    """When processes are stopped.

    Args:
        ready: seconds that each may take to get ready, because the others wait for it.
        ready_by: the time when none may get ready any more, nor be started.
        until: the time when all are stopped.
    """

    ready: float
    ready_by: float
    until: float


def apart(system: System, compiled: bool, device: str, lock: Path, limits: Limits) -> dict[str, Any]:
    """The same in a process of its own, whose fault ends nothing else."""
    what = {"job": system.name, "compiled": compiled}
    begun = time.monotonic()
    if begun > limits.ready_by:
        return {**what, "why": "the time is up"}
    started = command(system, compiled, device, lock)
    # Files and no pipes: a compiler's process that outlives this one would keep a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(started, stdout=out, stderr=log)
        while process.poll() is None:
            now, why = time.monotonic(), ""
            if now > limits.until:
                why = "the time is up"
            elif now > min(begun + limits.ready, limits.ready_by) and not Turns(lock).is_ready(process.pid):
                why = f"was not ready in {now - begun:.0f} s"
            if why:
                process.kill()
                process.wait()
                return {**what, "why": why}
            time.sleep(0.2)
        out.seek(0)
        log.seek(0)
        if process.returncode == 0:
            found: dict[str, Any] = json.loads(out.read().strip().splitlines()[-1])
            return found
        return {**what, "why": (log.read().strip().splitlines() or ["no message"])[-1][:200]}


def command(system: System, compiled: bool, device: str, lock: Path) -> list[str]:
    one = [sys.executable, __file__, "-", "--one", system.name, "--lock", str(lock), "--device", device]
    return [*one, "--compiled"] if compiled else one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default="*", help="a pattern of job names")
    parser.add_argument("--workers", type=int, default=5, help="networks that get ready at once; memory is their limit")
    parser.add_argument("--seconds", type=float, default=400)
    parser.add_argument("--ready", type=float, default=150, help="seconds that a network may take to get ready")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    parser.add_argument("--compiled", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    device = torch.device(options.device)
    systems = [system for system in SYSTEMS if fnmatch.fnmatch(system.name, options.only)]
    if options.one:
        (system,) = (system for system in SYSTEMS if system.name == options.one)
        print(json.dumps(measure(system, device, Turns(Path(options.lock)), compiled=options.compiled)))
        return
    begun, seconds = time.monotonic(), options.seconds
    limits = Limits(options.ready, begun + (1 - TIMING) * seconds, begun + seconds)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(options.workers) as pool:
        lock = Path(folder) / "turns.lock"
        # All as they are first: those numbers are needed, and compiling takes the longest.
        running = [
            pool.submit(apart, system, compiled, options.device, lock, limits)
            for compiled in (False, True)
            for system in systems
        ]
        for each in running:
            row = each.result()
            rows.append(row)
            options.out.write_text(json.dumps({"versions": versions(device), "rows": rows}, indent=1) + "\n")
            how = "compiled" if row["compiled"] else ""
            told = row.get("why") or f"{row['ms']:8.2f} ms  {row['peak_mib'] or 0:8.0f} MiB  batch {row['batch']}"
            print(f"{row['job']:32} {how:9} {told}", flush=True)


if __name__ == "__main__":
    main()
