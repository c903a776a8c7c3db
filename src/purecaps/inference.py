"""Trained networks as fast functions: images in, class lengths or classes out, no gradients."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.models import PCapsNet
from purecaps.ops import triton as fused
from purecaps.ops.triton import bands
from purecaps.ops.validation import shape_text

log = logging.getLogger("purecaps.inference")

PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "fp32": torch.float32}
OUTPUTS = ("lengths", "class")
IMPLEMENTATIONS = ("auto", "triton", "conv")


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
        return self._run(images)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.in_shape))
        return f"CompiledInference({shape} -> {self.output}, {self.impl}, {self.precision}, {self.device})"


def compile_inference(
    model: nn.Module, *, precision: str = "fp16", output: str = "lengths", impl: str = "conv"
) -> CompiledInference:
    """A function from images to class lengths or classes, as fast as this library has it.

    "triton" computes the whole network in one kernel, on a CUDA device: networks of five 3x3 layers whose maps are
    narrow, such as pcapsnet1, 2 and 3. It is compiled here, in some seconds. "conv" runs the network as it is in the
    given precision, anywhere. Pixels of uint8 images are divided by 255.

    Args:
        model: a PCapsNet; its weights are copied, on the device where they are.
        precision: "fp16" or "bf16" between layers with float32 sums, or float32 with products in "tf32" or "fp32".
        output: "lengths" [B, K] float32, or "class" [B] int64.
        impl: "triton", "conv", or "auto" for "triton" where it covers the network and "conv" elsewhere; which of
            them was taken is logged and is the result's `impl`. The kernel has been tested in Triton's interpreter
            but not yet on a GPU, so it is not the default.
    """
    for name, value, known in (
        ("precision", precision, tuple(PRECISIONS)),
        ("output", output, OUTPUTS),
        ("impl", impl, IMPLEMENTATIONS),
    ):
        if value not in known:
            raise ConfigError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    if not isinstance(model, PCapsNet):
        raise ConfigError(f"model: expected a PCapsNet, got {type(model).__name__}; call it under torch.inference_mode")
    device = model.capsule_blocks()[0].conv.weight.device
    reason = None if impl == "conv" else _refuses(model, device, PRECISIONS[precision])
    if impl == "triton" and reason is not None:
        raise ConfigError(f'impl: "triton" does not cover this network ({reason}); use "auto" or "conv"')
    run = None
    if impl != "conv" and reason is None:
        try:
            run = _one_kernel(model, device, precision, output)
        except ConfigError as error:
            if impl == "triton":
                raise
            reason = str(error)
    taken = "conv" if run is None else "triton"
    if impl == "auto":
        log.info("inference by %s%s", taken, "" if reason is None else f" ({reason})")
    return CompiledInference(
        run or _as_it_is(model, precision, output), model.in_shape, device, taken, precision, output
    )


def _stages(model: PCapsNet) -> list[bands.Stage]:
    return [
        bands.Stage(block.conv.weight.detach().float(), block.conv.geometry, block.negative_slope, block.squash_chunk)
        for block in model.capsule_blocks()
    ]


def _refuses(model: PCapsNet, device: torch.device, dtype: torch.dtype) -> str | None:
    return fused.missing(device.type) or bands.refuses(_stages(model), model.in_shape, dtype)


def _one_kernel(model: PCapsNet, device: torch.device, precision: str, output: str) -> Callable[[Tensor], Tensor]:
    # Here, not above: the package works without Triton.
    from purecaps.ops.triton.network import launch_network

    matrices = bands.make_bands(_stages(model), model.in_shape, PRECISIONS[precision])
    scale, shift = _pixel_map(model, matrices.matrices[0].shape[1])
    byte_scale = scale / 255
    rounding = "tf32" if precision == "tf32" else "ieee"

    def run(images: Tensor) -> Tensor:
        factor = byte_scale if images.dtype == torch.uint8 else scale
        if images.dtype == torch.float64:
            images = images.float()
        return launch_network(images.contiguous(), matrices, factor, shift, rounding, classes=output == "class")

    if device.type == "cuda":
        _try(run, model.in_shape, device)
    return run


def _try(run: Callable[[Tensor], Tensor], in_shape: tuple[int, int, int], device: torch.device) -> None:
    """Compiles the kernel now, so that a network too large for the device is refused here and not at the first call."""
    from triton.runtime.errors import OutOfResources  # type: ignore[import-untyped,import-not-found,unused-ignore]

    try:
        run(torch.zeros(1, *in_shape, dtype=torch.uint8, device=device))
    except OutOfResources as error:
        raise ConfigError(f'impl: "triton" does not fit this device ({error}); use "auto" or "conv"') from error


def _pixel_map(model: PCapsNet, padded: int) -> tuple[Tensor, Tensor]:
    """What each number of an image row (c, x) is multiplied with and what is added then: (pixel - mean) / std."""
    channels, _, width = model.in_shape
    like = model.capsule_blocks()[0].conv.weight
    std = torch.ones(channels) if model.std is None else model.std.flatten().float()
    mean = torch.zeros(channels) if model.mean is None else model.mean.flatten().float()
    maps = []
    for each in (1 / std, -mean / std):
        row = each.to(like.device).repeat_interleave(width)
        maps.append(nn.functional.pad(row, (0, padded - row.numel())))
    return maps[0], maps[1]


def _as_it_is(model: PCapsNet, precision: str, output: str) -> Callable[[Tensor], Tensor]:
    dtype = PRECISIONS[precision]
    network = copy.deepcopy(model).eval().requires_grad_(False).to(dtype)
    for block in network.capsule_blocks():
        block.conv.impl = "conv"

    def run(images: Tensor) -> Tensor:
        pixels = images.to(dtype) / 255 if images.dtype == torch.uint8 else images.to(dtype)
        with _tf32(precision == "tf32"):
            lengths: Tensor = network(pixels).float()
        return lengths.argmax(dim=1) if output == "class" else lengths

    return run


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
