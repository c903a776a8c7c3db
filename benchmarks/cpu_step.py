"""How long is one training step (forward, backward, Adam) on the CPU?

    OMP_NUM_THREADS=2 python benchmarks/cpu_step.py --models pcapsnet2 pcapsnet0

Three ways, in turns in one process: the conv2d reduction run eagerly ("conv"), the same through torch.compile
("compiled"), and what impl="auto" takes on this machine ("auto"). Nothing is timed before the gradients of "auto" and
"conv" agree in float64: in float32 a number within rounding of zero can fall on either side of leaky ReLU's kink.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from purecaps.losses import length_cross_entropy
from purecaps.models import create_model
from purecaps.models.pcapsnet import PCapsNet
from purecaps.testing import assert_close_in_norm

Step = Callable[[], None]


def in_shape(model: nn.Module) -> tuple[int, int, int]:
    assert isinstance(model, PCapsNet), f"expected a PCapsNet, got {type(model).__name__}"
    return model.in_shape


def make_step(name: str, batch: int, way: str) -> Step:
    torch.manual_seed(0)
    model = create_model(name, impl="auto" if way == "auto" else "conv")
    images, labels = torch.rand(batch, *in_shape(model)), torch.randint(0, 10, (batch,))
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    network = torch.compile(model) if way == "compiled" else model

    def step() -> None:
        optimiser.zero_grad()
        length_cross_entropy(network(images), labels).backward()
        optimiser.step()

    return step


def gradients(name: str, batch: int, impl: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = create_model(name, impl=impl).double()
    images, labels = torch.rand(batch, *in_shape(model), dtype=torch.float64), torch.randint(0, 10, (batch,))
    length_cross_entropy(model(images), labels).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def milliseconds(step: Step, least: float) -> float:
    """The mean over as many steps as take `least` seconds."""
    steps, start = 0, time.perf_counter()
    while (spent := time.perf_counter() - start) < least or steps == 0:
        step()
        steps += 1
    return spent / steps * 1e3


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["pcapsnet2", "pcapsnet0"])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15, help="times each way has its turn")
    parser.add_argument("--turn", type=float, default=0.3, help="seconds a turn takes at least")
    parser.add_argument("--ways", nargs="+", default=["conv", "compiled", "auto"])
    options = parser.parse_args()

    versions = f"torch {torch.__version__}, Python {platform.python_version()}"
    print(f"{processor()}, {torch.get_num_threads()} threads, {versions}")
    print(f"batch {options.batch}, {options.rounds} rounds; milliseconds a step")
    print(f"{'model':<12}{'way':<12}{'min':>9}{'median':>9}{'conv/this':>11}  (of the medians)")
    for name in options.models:
        for got, true in zip(*(gradients(name, options.batch, impl) for impl in ("auto", "conv")), strict=True):
            assert_close_in_norm(got, true, 1e-11, f"gradient of {name}")
        steps = {way: make_step(name, options.batch, way) for way in options.ways}
        times: dict[str, list[float]] = {way: [] for way in steps}
        for step in steps.values():
            milliseconds(step, 2 * options.turn)
        for _ in range(options.rounds):
            for way, step in steps.items():
                times[way].append(milliseconds(step, options.turn))
        reference = statistics.median(times.get("conv", next(iter(times.values()))))
        for way, found in times.items():
            median = statistics.median(found)
            print(f"{name:<12}{way:<12}{min(found):>9.2f}{median:>9.2f}{reference / median:>10.2f}x", flush=True)


if __name__ == "__main__":
    main()
