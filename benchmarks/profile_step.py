"""Which kernels does a training step spend its time in? One CUDA graph of it, as torch's profiler sees it.

    PYTHONPATH=src python benchmarks/profile_step.py OUT.json [--models pcapsnet0,pcapsnet4] [--precision tf32]
        [--seeds 10] [--streams 1] [--apart] [--narrow] [--in-turn]

Needs a CUDA device. For each network the step of benchmarks/train_step.py, everything included: its time without the
profiler; for each kernel how often it runs, for how long, and how long nothing else ran beside it; and one step as a
timeline, launch by launch, with its stream. What is alone on the device is what the step waits for. Kernels of one name
are told apart by their place in the step: "forward_kernel 2" is the second layer's. A kernel that is launched ahead
(ops/triton/ahead.py) counts its waiting for the one before as its own time: --in-turn launches none ahead.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from purecaps.files import write_json
from purecaps.ops.triton import ahead, early, stack
from purecaps.provenance import versions
from purecaps.train import step as train_step
from purecaps.train.arithmetic import arithmetic
from purecaps.train.step import GraphStepper
from train_step import WINDOW, first_losses, make_loader, make_state, milliseconds, recipe_for

LAST = "tally_kernel"  # of a step


@dataclass(frozen=True)
class Launch:
    """One kernel at work: microseconds from the beginning of its step."""

    name: str
    start: float
    duration: float
    stream: int

    @property
    def end(self) -> float:
        return self.start + self.duration


def steps_of(launches: Sequence[Launch]) -> list[list[Launch]]:
    """Whole steps, each from the end of a tally to the end of the next, with its kernels numbered."""
    steps: list[list[Launch]] = []
    current: list[Launch] | None = None  # before the first tally there may be a part of a step
    begun = 0.0
    for launch in sorted(launches, key=lambda each: each.start):
        if current is not None:
            current.append(launch)
        if launch.name == LAST:
            if current:
                steps.append(_numbered(current, begun))
            current, begun = [], launch.end
    return steps


def _numbered(step: Sequence[Launch], begun: float) -> list[Launch]:
    names = [each.name for each in step]
    seen: dict[str, int] = {}
    found = []
    for each in step:
        seen[each.name] = seen.get(each.name, 0) + 1
        name = f"{each.name} {seen[each.name]}" if names.count(each.name) > 1 else each.name
        found.append(Launch(name, each.start - begun, each.duration, each.stream))
    return found


def alone(step: Sequence[Launch]) -> dict[str, float]:
    """Microseconds in which a kernel, and no other, was at work."""
    edges = sorted({each.start for each in step} | {each.end for each in step})
    found = {each.name: 0.0 for each in step}
    for left, right in itertools.pairwise(edges):
        busy = [each for each in step if each.start <= left and each.end >= right]
        if len(busy) == 1:
            found[busy[0].name] += right - left
    return found


def table(steps: Sequence[Sequence[Launch]]) -> list[dict[str, Any]]:
    """Each kernel's median time and median time alone, the longest first."""
    times: dict[str, list[float]] = {}
    lonely: dict[str, list[float]] = {}
    for step in steps:
        by_itself = alone(step)
        for each in step:
            times.setdefault(each.name, []).append(each.duration)
            lonely.setdefault(each.name, []).append(by_itself[each.name])
    rows = [
        {"kernel": name, "us": statistics.median(durations), "alone_us": statistics.median(lonely[name])}
        for name, durations in times.items()
    ]
    return sorted(rows, key=lambda row: -float(row["us"]))


def launches_in(trace: Path) -> list[Launch]:
    """Kernels of a trace that the profiler has written; torch's own by what they do, without their types."""
    events = json.loads(trace.read_text())["traceEvents"]
    return [
        Launch(short(each["name"]), each["ts"], each["dur"], each.get("args", {}).get("stream", 0))
        for each in events
        if each.get("cat") == "kernel"
    ]


def short(name: str) -> str:
    for part in ("direct_copy", "FillFunctor", "multi_tensor_apply", "RadixSort", "BinaryFunctor"):
        if part in name:
            return f"torch: {part}"
    return name.split("<")[0].split("(")[0].removeprefix("void ")[:60]


def profiled(name: str, precision: str, seeds: int, device: torch.device) -> dict[str, Any]:
    recipe = recipe_for(name).replace(precision=precision)
    with arithmetic(precision, device):
        stepper = GraphStepper(make_state(name, recipe, "triton", seeds), make_loader(name, recipe, seeds), recipe, 0)
        first_losses(stepper)
        ms = statistics.median(milliseconds(stepper, 10))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            stepper(20 * WINDOW, 21 * WINDOW, lambda step: True)
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        steps = steps_of(launches_in(trace))
    # One that looks up the order of an epoch's images has more kernels.
    usual = statistics.mode([len(step) for step in steps])
    steps = [step for step in steps if len(step) == usual]
    return {
        "model": name,
        "batch": recipe.batch_size,
        "precision": precision,
        "seeds": seeds,
        "streams": stack.STREAMS,
        "together": early.TOGETHER,
        "narrow": early.NARROW,
        "ahead": ahead.AHEAD,
        "priority": train_step.PRIORITY,
        "ms": ms,
        "kernels": table(steps),
        "timeline": [asdict(each) for each in steps[len(steps) // 2]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default="pcapsnet0,pcapsnet4")
    parser.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="tf32")
    parser.add_argument("--seeds", type=int, default=1, help="networks side by side")
    parser.add_argument("--streams", type=int, default=stack.STREAMS, help="for weight gradients")
    parser.add_argument(
        "--priority", type=int, default=train_step.PRIORITY, help="of the stream the step is captured on"
    )
    parser.add_argument("--apart", action="store_true", help="the first two layers' gradients by two kernels")
    parser.add_argument(
        "--narrow", action="store_true", help="the first two layers' by one kernel in pcapsnet2 and 3 too"
    )
    parser.add_argument("--in-turn", action="store_true", help="no kernel is launched before the one ahead has ended")
    options = parser.parse_args()
    stack.STREAMS, early.TOGETHER, train_step.PRIORITY = options.streams, not options.apart, options.priority
    early.NARROW, ahead.AHEAD = options.narrow, not options.in_turn
    device = torch.device("cuda")
    rows = []
    for name in options.models.split(","):
        row = profiled(name, options.precision, options.seeds, device)
        rows.append(row)
        write_json(options.out, {"versions": versions(device), "rows": rows})
        print(
            f"{name}, batch {row['batch']}, {row['precision']}, {row['seeds']} side by side: {row['ms']:.3f} ms a step"
        )
        for each in row["kernels"]:
            print(f"  {each['us']:8.2f} us  {each['alone_us']:8.2f} alone  {each['kernel']}")


if __name__ == "__main__":
    main()
