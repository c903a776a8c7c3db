"""How fast is it? Ways to run one network, side by side in one run, behind a parity check.

A training step is forward, cross-entropy, backward and Adam on one batch; inference is the forward pass alone, without
gradients. On CUDA every step is captured in a CUDA graph and its replays are timed. Rounds go through the contenders in
turn, so that a disturbance meets them all.
"""

from __future__ import annotations

import csv
import datetime
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter
from torch import Tensor, nn

from purecaps.errors import ConfigError, PurecapsError, unknown_name
from purecaps.evaluate.style import styled
from purecaps.experiments.contenders import CONTENDERS, Contender
from purecaps.experiments.run import versions
from purecaps.models import create_model
from purecaps.models.pcapsnet import PCapsNet
from purecaps.models.registry import get_entry

MODES = ("train", "inference")
WARM_UP = 3
COLOURS = ("#7f7f7f", "#0072b2", "#009e73", "#c44e00", "#cc79a7", "#56b4e9", "#e69f00")
# float32 in another order of summation, and on CUDA in TF32.
PARITY = {"cpu": 1e-3, "cuda": 2e-2}


@dataclass(frozen=True)
class Row:
    """One measurement. Times are milliseconds a call; a speed is a ratio to another row of the same run."""

    date: str
    hardware: str
    torch: str
    python: str
    commit: str
    mode: str
    model: str
    batch: int
    contender: str
    n: int
    min_ms: float
    median_ms: float
    spread_ms: float
    images_per_s: float
    peak_mib: float
    times_floor: float


def bench(
    models: Sequence[str],
    batches: Sequence[int],
    modes: Sequence[str],
    contenders: Sequence[str],
    *,
    device: torch.device,
    rounds: int = 10,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Times every contender on every model, batch and mode.

    Args:
        models: registered P-CapsNets.
        batches: batch sizes.
        modes: "train", "inference" or both.
        contenders: names from `CONTENDERS`; those that this device does not run are left out.
        device: where to run.
        rounds: how often each is timed.
        say: told what is measured.
    """
    for name in contenders:
        if name not in CONTENDERS:
            raise unknown_name("contender", name, CONTENDERS)
    for mode in modes:
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
    if rounds < 1 or not batches or min(batches) < 1:
        raise ConfigError(f"rounds, batches: expected numbers >= 1, got {rounds} and {list(batches)}")
    chosen = [CONTENDERS[name] for name in contenders if device.type in CONTENDERS[name].devices]
    peak = matmul_rate(device)
    say(f"a matrix product runs at {peak / 1e9:,.0f} GFLOP/s here: the floor")
    rows = []
    for model in models:
        for mode in modes:
            for batch in batches:
                say(f"{model}, {mode}, batch {batch}")
                rows += _measure(model, mode, batch, chosen, device, rounds, peak)
    return rows


def _measure(
    model: str, mode: str, batch: int, chosen: Sequence[Contender], device: torch.device, rounds: int, peak: float
) -> list[Row]:
    shape = get_entry(model).in_shape
    images = torch.rand(batch, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    labels = (torch.arange(batch) % 10).to(device)
    networks = {}
    for contender in chosen:
        torch.manual_seed(0)
        networks[contender.name] = contender.make(model, device)
    require_parity(model, networks, [contender.name for contender in chosen if contender.exact], images)
    steps, memory = {}, {}
    for contender in chosen:
        step = _step(networks[contender.name], mode, images, labels)
        steps[contender.name], memory[contender.name] = _prepared(step, device)
    times: dict[str, list[float]] = {contender.name: [] for contender in chosen}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(_milliseconds(step, device))
    floor = floor_ms(model, mode, batch, peak)
    about = versions(device)
    return [
        Row(
            date=datetime.date.today().isoformat(),
            hardware=about["hardware"],
            torch=about["torch"],
            python=about["python"],
            commit=about["commit"],
            mode=mode,
            model=model,
            batch=batch,
            contender=name,
            n=rounds,
            min_ms=min(taken),
            median_ms=statistics.median(taken),
            spread_ms=max(taken) - min(taken),
            images_per_s=batch / min(taken) * 1e3,
            peak_mib=memory[name],
            times_floor=min(taken) / floor,
        )
        for name, taken in times.items()
    ]


def _step(network: nn.Module, mode: str, images: Tensor, labels: Tensor) -> Callable[[], object]:
    if mode == "inference":
        network.eval()
        return torch.inference_mode()(lambda: network(images))
    optimiser = torch.optim.Adam(network.parameters(), fused=True, capturable=images.is_cuda)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(10 * network(images), labels).backward()
        optimiser.step()

    return step


def _prepared(step: Callable[[], object], device: torch.device) -> tuple[Callable[[], object], float]:
    """The step warmed up and, on CUDA, as a graph; and the most memory (MiB) it took there."""
    if device.type != "cuda":
        for _ in range(WARM_UP):
            step()
        return step, 0.0
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay, (torch.cuda.max_memory_allocated() - before) / 2**20


def _milliseconds(step: Callable[[], object], device: torch.device) -> float:
    """The mean over as many calls as fill a twentieth of a second."""
    calls, taken = 1, 0.0
    while taken < 0.05:
        begun = time.perf_counter()
        for _ in range(calls):
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - begun
        per_call, calls = taken / calls, calls * 2
    return per_call * 1e3


@torch.no_grad()
def require_parity(model: str, networks: dict[str, nn.Module], exact: Sequence[str], images: Tensor) -> None:
    """Refuses to time networks whose scores are not those of the specification in float64, on the first images.

    Args:
        model: the registered network that they all are.
        networks: by contender, with the same weights.
        exact: the contenders to check.
        images: what will be timed.
    """
    some, tolerance = images[:64], PARITY[images.device.type]
    for name in exact:
        specification = create_model(model, impl="reference").to(images.device, torch.float64)
        specification.load_state_dict(networks[name].state_dict())
        true = specification(some.double())
        # The whole batch goes in, as in what is timed: which kernels run may depend on its size.
        error = ((networks[name](images)[: len(some)] - true).norm() / true.norm()).item()
        if not error <= tolerance:
            raise PurecapsError(
                f"{name}: expected the scores of the specification to {tolerance:g}, got {error:.2g} off"
            )


def matmul_rate(device: torch.device) -> float:
    """Floating-point operations a second of a large float32 matrix product: what arithmetic can reach here."""
    size = 8192 if device.type == "cuda" else 1024
    left, right = torch.rand(size, size, device=device), torch.rand(size, size, device=device)
    best = min(_milliseconds(lambda: left @ right, device) for _ in range(3))
    return 2 * size**3 / best * 1e3


def floor_ms(model: str, mode: str, batch: int, peak: float) -> float:
    """The convolutions' arithmetic at the rate of a large matrix product; three times that with both gradients."""
    network = create_model(model)
    assert isinstance(network, PCapsNet)
    passes = 3 if mode == "train" else 1
    return 2 * network.multiply_adds() * batch * passes / peak * 1e3


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Rows as text, each time also as a ratio to the conv2d reduction of the same model, mode and batch."""
    base = {(row.model, row.mode, row.batch): row.min_ms for row in rows if row.contender == "conv"}
    lines = []
    for row in rows:
        reference = base.get((row.model, row.mode, row.batch))
        lines.append(
            [
                row.model,
                row.mode,
                str(row.batch),
                row.contender,
                f"{row.min_ms:.3f}",
                f"{row.images_per_s:,.0f}",
                "-" if reference is None else f"{reference / row.min_ms:.2f}",
                f"{row.times_floor:.1f}",
                f"{row.peak_mib:,.0f}" if row.peak_mib else "-",
            ]
        )
    return lines


HEADINGS = ("model", "mode", "batch", "contender", "min ms", "images/s", "x conv", "x floor", "MiB")


def append_csv(path: Path, rows: Sequence[Row]) -> None:
    """Adds rows to a CSV file, with its headings where it is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with open(path, "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Row)], lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(
            {name: f"{value:.5g}" if isinstance(value, float) else value for name, value in asdict(row).items()}
            for row in rows
        )


def plot(rows: Sequence[Row]) -> Figure:
    """Images a second, a panel for each model and mode: bars for one batch size, lines against several."""
    panels = sorted({(row.model, row.mode) for row in rows})
    names = list(dict.fromkeys(row.contender for row in rows))
    colours = dict(zip(names, COLOURS * len(names), strict=False))
    with styled():
        figure = Figure(figsize=(3.6 * len(panels) + 0.8, 2.8), layout="constrained")
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, (model, mode) in zip(axes, panels, strict=True):
            here = [row for row in rows if (row.model, row.mode) == (model, mode)]
            sizes = sorted({row.batch for row in here})
            if len(sizes) == 1:
                shown = list(reversed(here))
                axis.barh(
                    [row.contender for row in shown],
                    [row.images_per_s for row in shown],
                    color=[colours[row.contender] for row in shown],
                )
                axis.set(title=f"{model}, {mode}, batch {sizes[0]}", xlabel="images/s")
                axis.xaxis.set_major_formatter(EngFormatter(sep=""))
                continue
            for name in names:
                points = sorted((row.batch, row.images_per_s) for row in here if row.contender == name)
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, color=colours[name], label=name)
            axis.set(title=f"{model}, {mode}", xlabel="batch", ylabel="images/s", xscale="log", yscale="log")
            axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(EngFormatter(sep=""))
            for side in (axis.xaxis, axis.yaxis):
                side.set_minor_formatter(NullFormatter())
        if axes[0].lines:
            figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    return figure
