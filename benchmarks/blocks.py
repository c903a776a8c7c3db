"""How fast is each capsule layer, forward and forward with backward, against its floors and against conv2d?

    PYTHONPATH=src python benchmarks/blocks.py OUT.json [--nets pcapsnet0,pcapsnet2,pcapsnet4] [--batch 128]
        [--precision tf32|bf16|fp16] [--no-compiled]

Needs a CUDA device. For each layer: a parity check against the float64 reference, then times of CUDA-graph replays
(median of 25, inputs rotated so that the cache does not hold them): conv2d eager in its best layout, torch.compile of
it, and the fused kernels. benchmarks/tune.py looks for their block sizes.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from purecaps import create_model
from purecaps.ops import conv, reference
from purecaps.ops import triton as fused
from purecaps.ops.geometry import Geometry

BANDWIDTH = 4.3e12  # bytes a second that a copy reaches on an H200
RATE = {"tf32": 400e12, "bf16": 800e12, "fp16": 800e12, "ieee": 50e12}  # what large products reach
DTYPE = {"tf32": torch.float32, "ieee": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = {"tf32": 3e-3, "ieee": 2e-5, "bf16": 3e-2, "fp16": 4e-3}
REPLAYS = 25
DEVICE = "cuda"
SLOPE = 0.1


@dataclass(frozen=True)
class Layer:
    """One layer of a network at one batch size; `first` layers need no input gradient."""

    name: str
    u: tuple[int, ...]
    w: tuple[int, ...]
    geometry: Geometry
    first: bool


def layers_of(net: str, batch: int) -> list[Layer]:
    """The layers with the shapes that their capsules have in the network."""
    model = create_model(net)
    channels, height, width = model.in_shape
    numbers, size, found = channels, (height, width), []
    for position, block in enumerate(model.blocks):
        weight = block.conv.weight
        kh, kw, C, _, g, n, p = weight.shape
        m = numbers // (g * n)
        name = f"{net[0]}{net[-1]}.{position + 1}"
        u = (batch, C, *size, g, m, n)
        found.append(Layer(name, u, tuple(weight.shape), block.conv.geometry, position == 0))
        size, numbers = block.conv.geometry.out_size(size, (kh, kw)), g * m * p
    return found


def floors(layer: Layer, precision: str) -> dict[str, float]:
    """Arithmetic and traffic that cannot be avoided, and the times they take, in microseconds."""
    size = torch.finfo(DTYPE[precision]).bits // 8
    kh, kw, C, O, g, n, p = layer.w
    batch, m = layer.u[0], layer.u[5]
    height, width = layer.geometry.out_size(layer.u[2:4], (kh, kw))
    flop = 2 * batch * height * width * m * kh * kw * C * O * g * n * p
    u, w = torch.Size(layer.u).numel() * size, torch.Size(layer.w).numel() * size
    y = batch * height * width * O * g * m * p * size
    forward_bytes = u + w + y
    both_bytes = forward_bytes + u + w + 2 * y + w + (0 if layer.first else u)
    both_flop = flop * (2 if layer.first else 3)
    return {
        "forward_flop": flop,
        "forward_bytes": forward_bytes,
        "both_flop": both_flop,
        "both_bytes": both_bytes,
        "forward": 1e6 * max(flop / RATE[precision], forward_bytes / BANDWIDTH),
        "both": 1e6 * max(both_flop / RATE[precision], both_bytes / BANDWIDTH),
    }


@dataclass(frozen=True)
class Inputs:
    """One set of inputs: capsules and the gradient of y, each in our kernels' layout and in conv2d's, and a kernel."""

    rows: Tensor
    images: Tensor
    w: Tensor
    grad_rows: Tensor
    grad_images: Tensor


def make_inputs(layer: Layer, precision: str, seed: int) -> Inputs:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    dtype = DTYPE[precision]
    to_rows, to_images = (0, 5, 1, 2, 3, 4, 6), (0, 5, 2, 3, 4, 1, 6)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE).to(dtype)

    def both_layouts(shape: tuple[int, ...], needs: bool) -> tuple[Tensor, Tensor]:
        rows = normal(shape).permute(to_rows)
        images = rows.permute(to_images).contiguous().permute(to_images)
        return rows.requires_grad_(needs), images.requires_grad_(needs)

    batch, C, H, W, g, m, n = layer.u
    kh, kw, _, O, _, _, p = layer.w
    # Capsules of a length of about 1, as trained networks have them.
    w = conv.empty_kernel(layer.w).to(DEVICE, dtype).copy_(normal(layer.w) * (kh * kw * C * n * m * p) ** -0.5)
    out = layer.geometry.out_size((H, W), (kh, kw))
    inputs = both_layouts((batch, H, W, g, m, C, n), not layer.first)
    return Inputs(*inputs, w.requires_grad_(), *both_layouts((batch, *out, g, m, O, p), False))


def with_gradients(block: Callable[..., Tensor], u: Tensor, w: Tensor, grad: Tensor) -> tuple[Tensor, ...]:
    y = block(u, w)
    wanted = (u, w) if u.requires_grad else (w,)
    return y, *torch.autograd.grad(y, wanted, grad.to(y.dtype))


def assert_parity(layer: Layer, inputs: Inputs, precision: str, rounding: str) -> float:
    """The largest relative error of output and gradients; an error where it is beyond the precision's tolerance."""
    # Coarse rounding meets the kink of leaky ReLU (purecaps.testing says how); a slope of 1 has none.
    slope = SLOPE if precision == "ieee" else 1.0

    def block(u: Tensor, w: Tensor) -> Tensor:
        return fused.caps_block(u, w, layer.geometry, slope, None, rounding)

    got = with_gradients(block, inputs.rows, inputs.w, inputs.grad_rows)
    u = inputs.rows.detach().double().requires_grad_(not layer.first)
    w = inputs.w.detach().double().requires_grad_()
    true = with_gradients(
        lambda u, w: reference.caps_block(u, w, layer.geometry, slope, None), u, w, inputs.grad_rows.double()
    )
    errors = [((one.double() - other).norm() / other.norm()).item() for one, other in zip(got, true, strict=True)]
    assert max(errors) <= TOLERANCE[precision], (
        f"{layer.name}: expected errors up to {TOLERANCE[precision]}, got {errors}"
    )
    return max(errors)


def microseconds(calls: list[Callable[[], Any]]) -> float:
    """Median time of one call, from replays of one CUDA graph that holds them all."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls[:2] * 2:
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    for _ in range(3):
        graph.replay()
    times = []
    for _ in range(REPLAYS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    del graph
    return 1e3 * statistics.median(times) / len(calls)


def time_blocks(sets: list[Inputs], block: Callable[..., Tensor], images: bool) -> tuple[float, float]:
    """Forward alone, and forward with backward."""
    used = [(each.images, each.w, each.grad_images) if images else (each.rows, each.w, each.grad_rows) for each in sets]
    with torch.no_grad():
        forward = microseconds([lambda u=u, w=w: block(u, w) for u, w, _ in used])
    both = microseconds([lambda each=each: with_gradients(block, *each) for each in used])
    return forward, both


def input_sets(layer: Layer, precision: str) -> list[Inputs]:
    """Enough sets of inputs to outgrow the cache, as far as a graph of 32 calls goes."""
    count = max(4, min(32, int(150e6 / floors(layer, precision)["both_bytes"])))
    return [make_inputs(layer, precision, seed) for seed in range(count)]


def measure(layer: Layer, arguments: argparse.Namespace) -> dict[str, Any]:
    precision = arguments.precision
    sets = input_sets(layer, precision)
    rounding = "ieee" if precision == "ieee" else "tf32"

    def ours(u: Tensor, w: Tensor) -> Tensor:
        return fused.caps_block(u, w, layer.geometry, SLOPE, None, rounding)

    def theirs(u: Tensor, w: Tensor) -> Tensor:
        return conv.caps_block(u, w, layer.geometry, SLOPE, None)

    row: dict[str, Any] = {"layer": layer.name, "u": layer.u, "w": layer.w, "sets": len(sets)}
    row["floor"] = floors(layer, precision)
    row["error"] = assert_parity(layer, sets[0], precision, rounding)
    row["conv"] = time_blocks(sets, theirs, images=True)
    if not arguments.no_compiled:
        torch._dynamo.reset()
        row["compiled"] = time_blocks(sets, torch.compile(theirs, dynamic=False), images=True)
    row["triton"] = time_blocks(sets, ours, images=False)
    row["triton_again"] = time_blocks(sets, ours, images=False)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["us a call            | forward                              | forward + backward"]
    lines.append("layer  error   B      | floor   conv   compiled  triton (x) | floor   conv   compiled  triton (x)")
    for row in rows:
        parts = []
        for index, name in enumerate(("forward", "both")):
            ours, floor = row["triton"][index], row["floor"][name]
            compiled = row.get("compiled", (float("nan"),) * 2)[index]
            parts.append(f"{floor:6.2f} {row['conv'][index]:7.2f} {compiled:7.2f}  {ours:7.2f} ({ours / floor:4.1f})")
        lines.append(f"{row['layer']:6s} {row['error']:.1e} {row['u'][0]:5d} | " + " | ".join(parts))
    for net in sorted({row["layer"][:2] for row in rows}):
        sums = [sum(row["triton"][1] for row in rows if row["layer"][:2] == net)]
        sums += [sum(row["conv"][1] for row in rows if row["layer"][:2] == net)]
        lines.append(f"{net}: all layers, forward + backward: triton {sums[0]:.1f}, conv {sums[1]:.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--nets", default="pcapsnet0,pcapsnet2,pcapsnet4")
    parser.add_argument("--batch", type=int, default=None, help="default: 128, and 256 for pcapsnet4")
    parser.add_argument("--precision", choices=sorted(RATE), default="tf32")
    parser.add_argument("--no-compiled", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = arguments.precision != "ieee"
    torch.backends.cudnn.benchmark = True
    rows: list[dict[str, Any]] = []
    import triton

    machine = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__}

    def save() -> None:
        with open(arguments.out, "w") as file:
            json.dump({"machine": machine, "precision": arguments.precision, "rows": rows}, file, indent=1)

    layers = [
        layer
        for net in arguments.nets.split(",")
        for layer in layers_of(net, arguments.batch or (256 if net == "pcapsnet4" else 128))
    ]
    for layer in layers:
        began = time.monotonic()
        rows.append(measure(layer, arguments))
        print(f"{layer.name} measured in {time.monotonic() - began:.0f} s", flush=True)
        save()
    print(f"{machine['gpu']}, torch {machine['torch']}, triton {machine['triton']}, {arguments.precision}")
    print(table(rows)[:12_000])


if __name__ == "__main__":
    main()
