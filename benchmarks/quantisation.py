"""How finely must weights and activations be scaled for 8 bits to be enough? Measured on held-out training images.

    python benchmarks/quantisation.py pcapsnet1 pcapsnet2 pcapsnet3 runs/pcapsnet2-seed0

Each choice is played in float, with rounding where integers would round: a scale for each kernel, for each output
capsule or for each column of it; activations from -127 to 127 steps of 1/128, of the calibration's largest number, or
from its least to its largest with a zero point. Three numbers each: the root mean square of what the last capsules'
lengths before squash are off by, how many of 5,000 images are told differently than in float, and the error on them.
The last line is the integer network itself. The test set is not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps import data
from purecaps.data.types import Split
from purecaps.evaluate.trained import TrainedModel
from purecaps.ops.conv import caps_conv2d
from purecaps.ops.reference import length, squash
from purecaps.quant import calibration_images, quantise
from purecaps.quant.calibrate import observe
from purecaps.quant.convert import output_scale
from purecaps.train.prepare import hold_out

HELD_OUT = 5000
GRANULARITY = {"kernel": (0, 1, 2, 3, 4, 5, 6), "capsule": (0, 1, 2, 4, 5, 6), "column": (0, 1, 2, 5)}
Rounding = Callable[[Tensor, int], Tensor]


def round_kernel(w: Tensor, dims: tuple[int, ...]) -> Tensor:
    scale = w.abs().amax(dim=dims, keepdim=True) / 127
    return (w / scale).round() * scale


def activations(trained: TrainedModel, calibration: Tensor) -> dict[str, Rounding]:
    """Ways to round the output of layer i."""
    ranges = observe(trained, calibration).outputs

    def symmetric(y: Tensor, step: float) -> Tensor:
        return (y / step).round().clamp(-127, 127) * step

    def with_zero(y: Tensor, index: int) -> Tensor:
        step, zero = output_scale(*ranges[index])
        return (y / step).round().clamp(-zero, 255 - zero) * step

    return {
        "none": lambda y, index: y,
        "1/128": lambda y, index: symmetric(y, 1 / 128),
        "largest": lambda y, index: symmetric(y, max(map(abs, ranges[index])) / 127),
        "zero point": with_zero,
    }


@torch.inference_mode()
def lengths(trained: TrainedModel, images: Tensor, dims: tuple[int, ...] | None, rounding: Rounding) -> Tensor:
    """Lengths of the last capsules before squash [N, K]."""
    blocks = trained.model.capsule_blocks()
    kernels = [block.conv.weight if dims is None else round_kernel(block.conv.weight, dims) for block in blocks]
    found = []
    for part in images.split(500):
        u = trained.model.as_capsules(trained.inputs(part))
        for index, (block, w) in enumerate(zip(blocks, kernels, strict=True)):
            v = F.leaky_relu(caps_conv2d(block.conv.fit(u), w, block.conv.geometry), block.negative_slope)
            u = v if block is blocks[-1] else rounding(squash(v, (-3, -2, -1)), index)
        found.append(length(u, (-3, -2, -1)).flatten(1))
    return torch.cat(found)


def report(name: str, got: Tensor, exact: Tensor, held: Split) -> None:
    off = float((got - exact).square().mean().sqrt())
    told = int((got.argmax(dim=1) != exact.argmax(dim=1)).sum())
    wrong = 100 * float((got.argmax(dim=1) != held.labels).double().mean())
    print(f"    {name:36} off by {off:.4f}   {told:2d} told differently   error {wrong:.2f} %", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="+", help="packaged models, or folders of runs")
    arguments = parser.parse_args()
    dataset = data.load("mnist")
    held = hold_out(dataset.train, HELD_OUT)[1]
    assert held is not None
    calibration = calibration_images(dataset)
    for name in arguments.networks:
        trained = TrainedModel.from_file(name) if "/" in name else TrainedModel.from_package(name)
        roundings = activations(trained, calibration)
        exact = lengths(trained, held.images, None, roundings["none"])
        print(f"{name}: error {100 * float((exact.argmax(dim=1) != held.labels).double().mean()):.2f} % in float")
        for kind, rounding in roundings.items():
            for granularity, dims in {"none": None, **GRANULARITY}.items():
                if (kind, granularity) != ("none", "none"):
                    got = lengths(trained, held.images, dims, rounding)
                    report(f"weights {granularity}, activations {kind}", got, exact, held)
        network = quantise(trained, calibration)
        scores = torch.cat([network.scores(part) for part in held.images.split(200)])
        report("integers", scores.double().sqrt() / (1 << network.fraction), exact, held)


if __name__ == "__main__":
    main()
