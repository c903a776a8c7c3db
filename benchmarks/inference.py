"""How many images a second does a trained network classify on a GPU, uint8 in, class out?

    python benchmarks/inference.py [--models pcapsnet1,pcapsnet2,pcapsnet3] [--batches 1,16,...,65536] [--sweep]
        [--no-autotune] [--budget 540] [--json FILE]

Sets side by side, in one run on the same images: the conv2d reduction in float16 operation by operation,
torch.compile of it, torch.compile(mode="max-autotune") of it, each with division by 255 and argmax inside, and the
network as one kernel. The first and the last are also timed as CUDA graphs; max-autotune makes graphs of its own.
Nothing is timed before its classes agree with those of the float64 network, but for lengths within the tolerance of
each other. Images are bright blobs; only time is measured. --sweep times the kernel under other launches too, at the
largest batch. Compiling takes most of the time: expect two to four minutes a network with max-autotune.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from purecaps import compile_inference, create_model
from purecaps.inference import PRECISIONS, _pixel_map, _stages
from purecaps.models import PCapsNet
from purecaps.ops.triton.bands import make_bands

Classify = Callable[[Tensor], Tensor]
BATCHES = (1, 16, 128, 1024, 8192, 65536)
TOLERANCE = 4e-3  # of a length in float16
REPEATS = 25
# Images, warps and programs a multiprocessor that --sweep tries.
SHAPES = ((16, 4, 2), (16, 8, 1), (32, 8, 1), (8, 8, 1), (8, 4, 2), (8, 4, 1), (16, 4, 1), (16, 4, 8), (32, 16, 1))


class Classifier(nn.Module):
    """What a user would compile: uint8 images to classes, through conv2d in float16."""

    def __init__(self, model: PCapsNet) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.model(images.half() / 255)
        return scores.argmax(dim=1)


def network(name: str) -> PCapsNet:
    model = create_model(name, pretrained=True, impl="conv")
    assert isinstance(model, PCapsNet)
    return model.cuda().eval()


def some_images(batch: int) -> Tensor:
    """Bright blobs on black, in different places: as much work as digits, and not all of one class."""
    generator = torch.Generator().manual_seed(0)
    y, x = torch.meshgrid(torch.arange(28.0), torch.arange(28.0), indexing="ij")
    count = min(batch, 4096)
    where = torch.rand(2, count, 1, 1, generator=generator) * 14 + 7
    width = torch.rand(count, 1, 1, generator=generator) * 4 + 2
    blobs = torch.exp(-((y - where[0]) ** 2 + (x - where[1]) ** 2) / width**2)
    noise = torch.rand(count, 28, 28, generator=generator)
    images = (255 * blobs * (0.5 + 0.5 * noise)).to(torch.uint8)[:, None]
    return images.repeat(-(-batch // count), 1, 1, 1)[:batch].cuda()


def true_lengths(name: str, images: Tensor) -> Tensor:
    model = network(name).double()
    with torch.inference_mode():
        return torch.cat([model(part.double() / 255) for part in images.split(1024)])


def assert_parity(what: str, got: Tensor, true: Tensor) -> float:
    """The share of images whose class is the float64 network's; every other one is a near tie."""
    short = true.amax(dim=1) - true.gather(1, got[:, None]).squeeze(1)
    assert short.max() <= 2 * TOLERANCE, f"{what}: expected the longest capsule, got one {short.max():.3g} shorter"
    return (got == true.argmax(dim=1)).double().mean().item()


def seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """Median and spread (interquartile) of one call, from events around as many as take some milliseconds."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    calls = max(1, min(200, int(5e-3 / max(time.perf_counter() - start, 1e-6))))
    times = []
    for _ in range(REPEATS):
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        for _ in range(calls):
            call()
        after.record()
        after.synchronize()
        times.append(before.elapsed_time(after) / 1e3 / calls)
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, high - low


def graphed(function: Classify, images: Tensor) -> Callable[[], None]:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.inference_mode():
        function(images)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), torch.inference_mode():
        function(images)
    replay: Callable[[], None] = graph.replay
    return replay


def variants(name: str, autotune: bool) -> dict[str, Classify]:
    model = network(name).half()
    found: dict[str, Classify] = {
        "one kernel": compile_inference(network(name), impl="triton", precision="fp16", output="class"),
        "eager": Classifier(model),
        "compiled": torch.compile(Classifier(model), dynamic=False),
    }
    if autotune:
        found["max-autotune"] = torch.compile(Classifier(model), mode="max-autotune", dynamic=False)
    return found


def measure(name: str, batches: list[int], autotune: bool, until: float) -> list[dict[str, Any]]:
    rows = []
    # Every batch size compiles anew, in two modes; by default torch gives up after eight times.
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64
    functions = variants(name, autotune)
    for batch in sorted(batches, reverse=True):
        images = some_images(batch)
        true = true_lengths(name, images)
        for what, function in functions.items():
            if time.monotonic() > until and what not in ("one kernel", "eager"):
                print(f"{name} {batch} {what}: left out, the budget is spent")
                continue
            with torch.inference_mode():
                agreed = assert_parity(f"{name} {what} at {batch}", function(images).clone(), true)

                def call(function: Classify = function, images: Tensor = images) -> Tensor:
                    return function(images)

                ways: dict[str, Callable[[], Any]] = {what: call}
                if what in ("one kernel", "eager"):
                    ways[f"{what}, graphed"] = graphed(function, images)
                for way, run in ways.items():
                    median, spread = seconds(run)
                    rows.append(
                        {
                            "net": name, "batch": batch, "way": way, "seconds": median, "spread": spread,
                            "images_per_second": batch / median, "same_class": agreed, "n": REPEATS,
                        }
                    )  # fmt: skip
                    print(
                        f"{name} {batch:6d} {way:20s} {median * 1e6:10.1f} us  +- {spread * 1e6:.1f}"
                        f"  {batch / median / 1e6:9.3f} M images/s  same class {agreed:.5f}",
                        flush=True,
                    )
    return rows


def sweep(name: str, batch: int, until: float) -> list[dict[str, Any]]:
    """The kernel under other launches, each held against float64 first."""
    from triton.runtime.errors import OutOfResources  # type: ignore[import-untyped]

    from purecaps.ops.triton.network import Launch, launch_network

    model, images = network(name), some_images(batch)
    true = true_lengths(name, images)
    bands = make_bands(_stages(model), model.in_shape, PRECISIONS["fp16"])
    scale, shift = _pixel_map(model, bands.matrices[0].shape[1])
    byte_scale = scale / 255
    rows: list[dict[str, Any]] = []
    for hold in ((2,), (), (1, 2), (2, 3), (1, 2, 3)):
        for count, warps, programs in SHAPES:
            if time.monotonic() > until:
                print("sweep: the budget is spent")
                return rows
            launch = Launch(count, warps, hold, programs)

            def run(launch: Launch = launch) -> Tensor:
                return launch_network(images, bands, byte_scale, shift, "ieee", classes=True, launch=launch)

            try:
                assert_parity(f"{name} {launch}", run(), true)
                median, _ = seconds(run)
            except OutOfResources as error:
                print(f"{launch}: {error}")
                continue
            rows.append({"net": name, "batch": batch, "launch": vars(launch), "images_per_second": batch / median})
            print(f"{name} {batch} {launch}: {batch / median / 1e6:.3f} M images/s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="pcapsnet2,pcapsnet1,pcapsnet3")
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--sweep", action="store_true", help="time the kernel under other launches too")
    parser.add_argument("--no-autotune", action="store_true", help="leave max-autotune out: it compiles longest")
    parser.add_argument("--budget", type=float, default=540, help="seconds after which nothing new is compiled")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    assert torch.cuda.is_available(), "expected a CUDA device"
    until = time.monotonic() + options.budget
    batches = [int(batch) for batch in options.batches.split(",")]
    record: dict[str, Any] = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "python": platform.python_version(),
        "rows": [], "sweep": [],
    }  # fmt: skip
    for name in options.models.split(","):
        if options.sweep:
            record["sweep"] += sweep(name, max(batches), until)
        record["rows"] += measure(name, batches, not options.no_autotune, until)
        if options.json:
            options.json.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
