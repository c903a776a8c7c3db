"""Which block sizes are fastest for each kernel of a network? The answers are for ops/triton/plan_table.py.

    PYTHONPATH=src python benchmarks/tune.py OUT.json pcapsnet0:128:tf32 pcapsnet4:256:bf16 [--tries 30] [--budget 240]
    PYTHONPATH=src python benchmarks/tune.py OUT.json pcapsnet0:128:tf32 --ranked RANKED.json [--tries 8]

Needs a CUDA device. For each kernel of each layer, the plan at hand and a random choice of others, or those that
benchmarks/rank_tiles.py expects most of: first compiled by many processes side by side, then timed one after the other,
as replays of a CUDA graph of 20 launches (median of 9). What does not give the result of the plainest tile is left out.
Inputs stay in the cache, as they do in a training step, where
the kernel before has just written them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purecaps import create_model
from purecaps.ops.geometry import Geometry
from purecaps.ops.triton.plan import plan, planned
from purecaps.ops.triton.problem import Problem, power_of_two, problem_of
from purecaps.ops.triton.tile import Tile

# "bytes": as compile_inference does it, half precision from uint8 images.
DTYPE = {"tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16, "bytes": torch.float16}
LAUNCHES, REPLAYS = 20, 9
KERNELS = ("forward", "inputs", "weights")
SLOPE = 0.1
# What two orders of summation may differ by: rounding to ten bits, seven in bfloat16, of the result itself.
OFF = 5e-3


@dataclass(frozen=True)
class Case:
    """One kernel of one layer: "forward", "inputs" or "weights"."""

    net: str
    batch: int
    precision: str
    networks: int
    layer: int
    kernel: str

    def __str__(self) -> str:
        return f"{self.net}.{self.layer + 1} x{self.networks}x{self.batch} {self.precision} {self.kernel}"


@dataclass(frozen=True)
class Choice:
    tile: Tile
    splits: int = 0

    def __str__(self) -> str:
        tile = self.tile
        text = f"{tile.rows}x{tile.columns}x{tile.inner} w{tile.warps} s{tile.stages}"
        text += f" span {tile.span}" if tile.span > 1 else ""
        return f"{text} /{self.splits}" if self.splits else text


def cases_of(text: str) -> list[Case]:
    net, batch, precision, *rest = text.split(":")
    networks = int(rest[0]) if rest else 1
    return [
        Case(net, int(batch), precision, networks, layer, kernel)
        for layer in range(len(create_model(net).blocks))
        for kernel in KERNELS
        if layer or kernel != "inputs"
    ]


def sizes_of(case: Case) -> tuple[tuple[int, ...], tuple[int, ...], Geometry]:
    """Shapes of u and w, and the geometry."""
    model = create_model(case.net)
    numbers, *size = model.in_shape
    for position, block in enumerate(model.blocks):
        kh, kw, C, _, g, n, p = block.conv.weight.shape
        m = numbers // (g * n)
        if position == case.layer:
            u = (case.networks, case.batch, *size, m, C, n)
            return u, tuple(block.conv.weight.shape), block.conv.geometry
        size, numbers = list(block.conv.geometry.out_size((size[0], size[1]), (kh, kw))), g * m * p
    raise AssertionError(case)


def problem_for(case: Case) -> Problem:
    u, w, geometry = sizes_of(case)
    capsules = torch.empty(u, dtype=DTYPE[case.precision], device="meta").permute(0, 1, 5, 2, 3, 4, 6)
    kernel = torch.empty(case.networks, *w, dtype=capsules.dtype, device="meta").squeeze(5)
    return problem_of(capsules, kernel, geometry)


def launcher(case: Case, device: str = "cuda") -> Callable[[], Tensor]:
    """A function that launches the kernel once, on inputs like those in a training step, and gives its result."""
    from purecaps.ops.triton.forward import launch_forward
    from purecaps.ops.triton.input_gradient import Below, launch_input_gradient
    from purecaps.ops.triton.memory import empty_as
    from purecaps.ops.triton.weight_gradient import launch_weight_gradient

    generator = torch.Generator(device).manual_seed(0)
    dtype = DTYPE[case.precision]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    u_shape, w_shape, _ = sizes_of(case)
    kh, kw, C, O, g, n, p = w_shape
    u = normal(*u_shape).permute(0, 1, 5, 2, 3, 4, 6)
    # As `models.stack` lays it out: each network's kernel as `empty_kernel` does.
    w = torch.empty(case.networks, g, O, p, kh, kw, C, n, dtype=dtype, device=device).permute(0, 4, 5, 6, 2, 1, 7, 3)
    w.copy_(normal(case.networks, *w_shape) * (kh * kw * C * n * u_shape[4] * p) ** -0.5)
    problem = problem_for(case)
    if case.kernel == "forward":
        scale = 1.0
        if case.precision == "bytes" and case.layer == 0:
            images = torch.randint(0, 256, (case.batch, n, problem.H, problem.W), generator=generator, device=device)
            u, scale = images.to(torch.uint8).permute(0, 2, 3, 1)[None, :, None, :, :, None, :], 1 / 255
        return lambda: launch_forward(u, w.squeeze(5), problem, SLOPE, "tf32", activate=True, scale=scale)[0]
    grad_v = normal(problem.Z, problem.B, *problem.out, problem.m, O, p)
    if case.kernel == "weights":
        grad_w = empty_as(w.float())

        def weights() -> Tensor:
            launch_weight_gradient(u, grad_v, grad_w, problem, "tf32")
            return grad_w

        return weights
    turned = w.movedim(6, 4).contiguous().movedim(4, 6).squeeze(5)  # (o, p) fastest, as stack.py keeps it
    r = torch.rand(problem.Z, problem.B, problem.H, problem.W, 1, C, 1, device=device).permute(0, 1, 5, 2, 3, 4, 6)
    below = Below(u, r, SLOPE, (problem.m, problem.n))
    return lambda: launch_input_gradient(grad_v, turned, problem, dtype, "tf32", below)


def plainest(case: Case) -> Choice:
    """Small, one warp, nothing loaded ahead: what a compiler is least likely to get wrong."""
    problem = problem_for(case)
    width = power_of_two(problem.n) if case.kernel == "inputs" else problem.p_pad
    return Choice(Tile(max(16, problem.m_pad), max(16, width), 16, 1, 1), 3 if case.kernel == "weights" else 0)


def choices(case: Case, tries: int, ranked: dict[str, list[Tile]] | None = None) -> list[Choice]:
    """The plan at hand, and others: the first of those that are ranked, or some at random from all that fit."""
    problem = problem_for(case)
    chosen = plan(problem)
    now = Choice(getattr(chosen, case.kernel), chosen.splits if case.kernel == "weights" else 0)
    if ranked is not None:
        drawn = ranked.get(str(case), [])
    else:
        drawn = sorted(tiles_of(case), key=str)
        random.Random(str(case)).shuffle(drawn)
    others = [tile for tile in drawn if tile != now.tile][: tries - 1]
    found = [choice for tile in others for choice in with_splits(case, problem, tile)]
    return [now, *(choice for choice in with_splits(case, problem, now.tile) if choice != now), *found]


def tiles_of(case: Case) -> list[Tile]:
    """All that fit."""
    problem = problem_for(case)
    itemsize = problem.itemsize
    if case.kernel == "forward":
        least_rows, least_columns, width, inner = problem.m_pad, problem.p_pad, problem.O * problem.p_pad, problem.inner
        rows_most = problem.pixels * problem.m_pad
    elif case.kernel == "inputs":
        least_rows, least_columns, width = problem.m_pad, problem.n, problem.C * problem.n
        inner, rows_most = problem.O * problem.p, problem.B * problem.H * problem.W * problem.m_pad
    else:
        least_rows, least_columns, width = 1, problem.p_pad, problem.O * problem.p_pad
        inner, rows_most = problem.pixels * problem.m_pad, problem.inner
    across = problem.W if case.kernel == "inputs" else problem.out[1]
    # Side by side only where columns are few, and then all of them.
    spans = [span for span in (1, 2, 4, 8) if span == 1 or (case.kernel != "weights" and span * width <= 64)]
    found = []
    shapes = itertools.product(spans, (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (16, 32, 64, 128, 256), (2, 4, 8))
    for span, rows, columns, deep, warps in shapes:
        wide = span * width
        if rows < least_rows or rows * columns > 16384 or rows >= 2 * max(16, rows_most):
            continue
        if rows < {"forward": 64, "inputs": 32, "weights": 16}[case.kernel] or (
            case.kernel == "weights" and rows > 128
        ):
            continue
        if columns < span * least_columns or columns >= 2 * max(16, wide) or columns < min(wide, 32):
            continue
        if span > 1 and (span > across or columns < wide):
            continue
        # With several pixels a sum is longer: those that either of them sees.
        longest = inner * span if case.kernel == "inputs" or span == 1 else 2 * inner
        if deep >= 2 * max(16, longest) or (case.kernel == "weights" and deep < problem.m_pad):
            continue
        if not 8 <= rows * columns / (32 * warps) <= 128:
            continue
        for stages in (1, 2, 3, 4):
            # A sum of one step has nothing to load ahead; for weights that is worth trying anyway.
            alone = (deep >= inner) == (stages == 1) or (stages == 1 and (case.kernel == "weights" or span > 1))
            if alone and stages * deep * (rows + columns) * itemsize <= 200_000:
                found.append(Tile(rows, columns, deep, warps, stages, span))
    return found


def with_splits(case: Case, problem: Problem, tile: Tile) -> list[Choice]:
    """A tile; for weight gradients with several numbers of parts, which need no compiling of their own."""
    if case.kernel != "weights":
        return [Choice(tile)]
    tiles = problem.Z * -(-problem.inner // tile.rows) * -(-problem.O * problem.p_pad // tile.columns)
    steps = -(-problem.pixels * problem.m_pad // tile.inner)
    return [
        Choice(tile, each)
        for each in sorted({max(1, min(n // tiles, steps)) for n in (132, 264, 528, 1056, 2112, 4224)})
    ]


def changes(case: Case, choice: Choice) -> dict[str, Any]:
    return {case.kernel: choice.tile} | ({"splits": choice.splits} if choice.splits else {})


def compile_share(jobs: list[tuple[Case, Choice]], until: float, done: Any) -> None:
    """Launches each once, which leaves the compiled kernel in Triton's cache."""
    last: Case | None = None
    for case, choice in jobs:
        if time.time() > until:
            return
        if case != last:
            launch, last = launcher(case), case
            with planned(**changes(case, plainest(case))):
                true = launch().double()
        try:
            with planned(**changes(case, choice)):
                off = ((launch().double() - true).norm() / true.norm()).item()
            done.put((case, choice, None if off <= OFF else f"{off:.1e} off"))
        except Exception as error:  # a tile may ask for more shared memory or registers than there are
            done.put((case, choice, f"{type(error).__name__}: {error}"[:120]))


def microseconds(launch: Callable[[], Tensor]) -> float:
    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(LAUNCHES):
            launch()
    graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return 1e3 * statistics.median(times) / LAUNCHES


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("cases", nargs="+", help="NET:BATCH:PRECISION[:NETWORKS]")
    parser.add_argument("--tries", type=int, default=30)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds for compiling")
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--ranked", type=Path, help="what benchmarks/rank_tiles.py wrote")
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=KERNELS)
    arguments = parser.parse_args()
    cases = [case for text in arguments.cases for case in cases_of(text) if case.kernel in arguments.kernels]
    ranked: dict[str, list[Tile]] | None = None
    if arguments.ranked is not None:
        read = json.loads(arguments.ranked.read_text())
        ranked = {name: [Tile(**row["tile"]) for row in rows] for name, rows in read.items()}
        cases = [case for case in cases if str(case) in ranked]
    # Every case's first tries come before any case's later ones, so that a short budget is spread evenly.
    jobs = [
        (position // 6, index, case, choice)
        for index, case in enumerate(cases)
        for position, choice in enumerate(
            {choice.tile: choice for choice in choices(case, arguments.tries, ranked)}.values()
        )
    ]
    jobs.sort(key=lambda job: job[:2])
    context = multiprocessing.get_context("spawn")
    done = context.Queue()
    until = time.time() + arguments.budget
    plain = [(case, choice) for _, _, case, choice in jobs]
    shares = [plain[worker :: arguments.workers] for worker in range(arguments.workers)]
    workers = [context.Process(target=compile_share, args=(share, until, done)) for share in shares]
    for worker in workers:
        worker.start()
    compiled, faults = [], []
    while any(worker.is_alive() for worker in workers) or not done.empty():
        while not done.empty():
            case, choice, fault = done.get()
            (compiled if fault is None else faults).append((case, choice) if fault is None else (case, choice, fault))
        time.sleep(0.1)
    print(f"{len(compiled)} of {len(plain)} compiled, {len(faults)} refused", flush=True)
    for case, choice, fault in faults:
        if fault.endswith("off"):
            print(f"{case}: {choice} is {fault}", flush=True)
    results = []
    for case in cases:
        launch = launcher(case)
        timed = []
        ready = {choice.tile for each, choice in compiled if each == case}
        for choice in choices(case, arguments.tries, ranked):
            if choice.tile in ready:
                with planned(**changes(case, choice)):
                    timed.append((microseconds(launch), choice))
        if not timed:
            continue
        now = choices(case, 1)[0]
        before = next((took for took, choice in timed if choice == now), float("nan"))
        timed.sort(key=lambda each: each[0])
        best = "; ".join(f"{took:.2f} {choice}" for took, choice in timed[:3])
        print(f"{case}: planned {before:.2f} {now} | {best}", flush=True)
        results.append(
            {
                "case": asdict(case),
                "planned_us": before,
                "planned": str(now),
                "tried": [{"us": took, **asdict(choice)} for took, choice in timed],
            }
        )
    with open(arguments.out, "w") as file:
        json.dump({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "results": results}, file)


if __name__ == "__main__":
    main()
