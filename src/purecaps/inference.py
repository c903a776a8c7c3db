"""Trained networks as fast functions: images in, class lengths or classes out, no gradients."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.models import PCapsNet
from purecaps.ops import cpu
from purecaps.ops import triton as fused
from purecaps.ops.autocast import autocast_dtype
from purecaps.ops.cuda import device as cuda_device
from purecaps.ops.cuda import layout
from purecaps.ops.cuda import network as whole
from purecaps.ops.cuda.nvrtc import CudaError
from purecaps.ops.tf32 import convolutions_in_tf32
from purecaps.ops.triton.stack import Layer
from purecaps.ops.validation import shape_text

log = logging.getLogger("purecaps.inference")

Run = Callable[[Tensor], Tensor]

PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "fp32": torch.float32}
HALVES = ("fp16", "bf16")
OUTPUTS = ("lengths", "class")
IMPLEMENTATIONS = ("auto", "network", "triton", "cpu", "conv")
# Images that go through all layers before the next ones do: the maps of more do not stay in an H200's cache from one
# layer to the next (pcapsnet2: 8,192 images in 0.168 ms, 65,536 at once in 1.81).
AT_ONCE = 8192


class CompiledInference:
    """A network as `compile_inference` made it: call it with images.

    Weights are those of the moment of compilation; later changes to the network do not reach it.

    Shape:
        images [B, C, H, W], uint8 or floating in [0, 1] -> lengths [B, K] float32, or classes [B] int64
    """

    def __init__(
        self,
        run: Callable[[Tensor], Tensor],
        in_shape: tuple[int, int, int],
        device: torch.device,
        impl: str,
        precision: str,
        output: str,
    ) -> None:
        self._run = run
        self.in_shape = in_shape
        self.device = device
        self.impl = impl
        self.precision = precision
        self.output = output

    @torch.inference_mode()
    def __call__(self, images: Tensor) -> Tensor:
        if images.dim() != 4 or tuple(images.shape[1:]) != self.in_shape:
            expected = ", ".join(map(str, self.in_shape))
            raise ConfigError(f"images: expected [B, {expected}], got {shape_text(images.shape)}")
        if images.dtype != torch.uint8 and not images.is_floating_point():
            raise ConfigError(f"images: expected uint8, or floating numbers in [0, 1], got {images.dtype}")
        if images.device != self.device:
            raise ConfigError(f"images: expected them on {self.device}, as the network is, got {images.device}")
        if autocast_dtype(self.device.type) is None:
            return self._run(images)
        # The precision is what it was compiled for, and the layers on a CPU take no other.
        with torch.autocast(self.device.type, enabled=False):
            return self._run(images)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.in_shape))
        return f"CompiledInference({shape} -> {self.output}, {self.impl}, {self.precision}, {self.device})"


def compile_inference(
    model: nn.Module, *, precision: str | None = None, output: str = "lengths", impl: str = "auto"
) -> CompiledInference:
    """A function from images to class lengths or classes, as fast as this library has it.

    On a CUDA device, "network" runs the whole of a small network in one kernel, in half precision, and "triton" one
    fused kernel a layer. "cpu" and "conv" run the network by the layers of that name, "conv" in any precision and
    anywhere. Pixels of uint8 images are divided by 255.

    Args:
        model: a PCapsNet; its weights are copied, on the device where they are.
        precision: "fp16" or "bf16" between layers with float32 sums, or float32 with products in "tf32" or "fp32". None
            takes "fp16" on a CUDA device and "fp32" elsewhere, where half precision is slower.
        output: "lengths" [B, K] float32, or "class" [B] int64.
        impl: "network", "triton", "cpu", "conv", or "auto": the first of these that covers the network. What was taken
            is logged and is the result's `impl`.
    """
    if not isinstance(model, PCapsNet):
        raise ConfigError(f"model: expected a PCapsNet, got {type(model).__name__}; call it under torch.inference_mode")
    model.require_capsule_blocks()
    device = model.capsule_blocks()[0].conv.weight.device
    precision = precision or ("fp16" if device.type == "cuda" else "fp32")
    for name, value, known in (
        ("precision", precision, tuple(PRECISIONS)),
        ("output", output, OUTPUTS),
        ("impl", impl, IMPLEMENTATIONS),
    ):
        if value not in known:
            raise ConfigError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    passed_over = []
    for name in _WAYS if impl == "auto" else (impl,):
        refuses, make = _WAYS[name]
        refusal, run = refuses(model, device, precision), None
        if refusal is None:
            try:
                run = make(model, device, precision, output)
                break
            except CudaError as error:  # a compiler that does not know the device, say
                if impl != "auto":
                    raise
                refusal = " ".join(str(error).split())[:200]
        passed_over.append(f"{name}: {refusal}")
    if run is None:
        raise ConfigError(f'impl: "{impl}" does not cover this network ({refusal}); use "auto" or "conv"')
    if impl == "auto":
        log.info("inference by %s%s", name, f" ({'; '.join(passed_over)})" if passed_over else "")
    return CompiledInference(run, model.in_shape, device, name, precision, output)


def _never(model: PCapsNet, device: torch.device, precision: str) -> str | None:
    return None


def _cpu_refuses(model: PCapsNet, device: torch.device, precision: str) -> str | None:
    network = _network_by("cpu", model, precision)
    u = network.as_capsules(torch.zeros(1, *model.in_shape, dtype=PRECISIONS[precision], device=device))
    for block in network.capsule_blocks():
        u = block.conv.fit(u)
        refusal = cpu.refuses(u, block.conv.weight, block.conv.geometry, block.squash_chunk)
        if refusal is not None:
            return refusal
        u = block(u)
    return None


def _layers_refuse(model: PCapsNet, device: torch.device, precision: str) -> str | None:
    return fused.missing(device.type) or (None if _run(model, device, precision) else "capsules or chunks of odd sizes")


def _run(model: PCapsNet, device: torch.device, precision: str) -> list[Layer] | None:
    blocks = model.capsule_blocks()
    image = torch.zeros(1, *model.in_shape, dtype=PRECISIONS[precision], device=device)
    u = blocks[0].conv.fit(image.permute(0, 2, 3, 1)[:, None, :, :, None, None, :])
    # No gradient is asked for, so whichever one the blocks would give does not matter.
    specs = [block.spec._replace(squash_gradient="exact") for block in blocks]
    return fused.run_of(u, [block.conv.weight for block in blocks], specs)


def _by_layers(model: PCapsNet, device: torch.device, precision: str, output: str) -> Run:
    from purecaps.ops.triton.layers import run_layers

    layers, dtype = _run(model, device, precision), PRECISIONS[precision]
    assert layers is not None
    network = copy.deepcopy(model).eval().requires_grad_(False)
    blocks = network.capsule_blocks()
    # A copy in the same memory layout.
    weights = [block.conv.kernel().to(dtype, copy=True).squeeze(4)[None] for block in blocks]
    plain = network.mean is None and network.std is None
    rounding = "tf32" if precision == "tf32" else "ieee"

    def run(images: Tensor) -> Tensor:
        if len(images) > AT_ONCE:
            return torch.cat([run(part) for part in images.split(AT_ONCE)])
        if images.dtype == torch.uint8 and plain:
            u = images.permute(0, 2, 3, 1)[:, None, :, :, None, None, :]
        else:
            pixels = images.float() / 255 if images.dtype == torch.uint8 else images.float()
            u = network.as_capsules(pixels).to(dtype)
        r = run_layers(blocks[0].conv.fit(u).squeeze(4)[None], weights, layers, rounding)
        if output == "class" and r.shape[2:].numel() == 1:
            return r.flatten(1).argmax(dim=1)  # a longer capsule is also longer when squashed
        lengths = -torch.expm1(-r)
        pooled = lengths.mean(dim=(2, 3)) if network.head.pool == "mean" else lengths.amax(dim=(2, 3))
        return pooled.argmax(dim=1) if output == "class" else pooled

    return run


def _stages(model: PCapsNet) -> list[layout.Stage]:
    return [
        layout.Stage(block.conv.kernel().detach(), block.conv.geometry, block.negative_slope, block.squash_chunk)
        for block in model.capsule_blocks()
    ]


def _network_refuses(model: PCapsNet, device: torch.device, precision: str) -> str | None:
    if precision not in HALVES:
        return f"precision {precision}, only {' and '.join(HALVES)} are covered"
    reason = layout.refuses(_stages(model), model.in_shape) or cuda_device.missing(device)
    if reason is not None:
        return reason
    made, shared = _layout(model, precision), cuda_device.shared_memory(device)
    if made.warps(shared):
        return None
    return f"{made.shared_bytes(1)} bytes of shared memory, only {shared} are there"


def _layout(model: PCapsNet, precision: str) -> layout.Layout:
    mean, std = (default if value is None else float(value) for value, default in ((model.mean, 0.0), (model.std, 1.0)))
    return layout.make_layout(_stages(model), model.in_shape, mean, std, PRECISIONS[precision])


def _one_kernel(model: PCapsNet, device: torch.device, precision: str, output: str) -> Run:
    return whole.Network(_layout(model, precision), classes_out=output == "class")


def _network_by(impl: str, model: PCapsNet, precision: str) -> PCapsNet:
    network = copy.deepcopy(model).eval().requires_grad_(False).to(PRECISIONS[precision])
    for block in network.capsule_blocks():
        block.conv.impl = impl
        block.squash_gradient = "exact"  # none is asked for, so whichever one they would give does not matter
    return network


def _as_it_is(impl: str, model: PCapsNet, device: torch.device, precision: str, output: str) -> Run:
    dtype, network = PRECISIONS[precision], _network_by(impl, model, precision)

    def run(images: Tensor) -> Tensor:
        pixels = images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
        with convolutions_in_tf32(precision == "tf32") if device.type == "cuda" else contextlib.nullcontext():
            lengths: Tensor = network(pixels).float()
        return lengths.argmax(dim=1) if output == "class" else lengths

    return run


_WAYS: dict[str, tuple[Callable[[PCapsNet, torch.device, str], str | None], Callable[..., Run]]] = {
    "network": (_network_refuses, _one_kernel),
    "triton": (_layers_refuse, _by_layers),
    "cpu": (_cpu_refuses, partial(_as_it_is, "cpu")),
    "conv": (_never, partial(_as_it_is, "conv")),
}
