"""Capsule layers: the convolution alone, and the block that the paper's networks are stacks of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError, unknown_name
from purecaps.nn.hooks import computes_as, is_hooked
from purecaps.nn.init import check_correlation, fan, initialise
from purecaps.ops import caps_block, caps_conv2d, refold, registry
from purecaps.ops.activation import leaky_squash
from purecaps.ops.conv import empty_kernel
from purecaps.ops.geometry import Block, Geometry, IntOrPair, Pair
from purecaps.ops.validation import (
    as_geometry,
    as_pair,
    check_chunk,
    check_gradient,
    check_slope,
    is_count,
    rows_to_fill,
    shape_text,
    times,
)

COEFFICIENTS = ("free", "softmax")


class CapsConv2d(nn.Module):
    """A convolution of capsules, without bias and without routing.

    The layer takes capsules of any m: their numbers are refolded, row-major, into (g, m, n) first, so that
    layers of different shapes can be stacked as they are.

    Args:
        in_caps: capsules at each input position, C.
        out_caps: capsules at each output position, O.
        capsule: the kernel capsule's shape (g, n, p); input capsules are read as g x m x n and output capsules
            are g x m x p.
        kernel_size: an int or a (height, width) pair.
        stride: step between output positions.
        padding: zero capsules added on each side.
        dilation: distance between the kernel's positions.
        init: "msra" (true fan-in) or "caffe" (as the authors' code counts).
        init_correlation: of a kernel's capsules at different positions; see `purecaps.nn.init.initialise`.
        coefficients: None, or explicit coupling coefficients c that are learned beside the kernel, one for each kernel
            position, input and output capsule: each vote U @ W is multiplied with its c. "free" learns c itself,
            "softmax" learns logits b, with c = O softmax(b) over the output capsules. Routing's softmax lacks the
            factor O, a constant; with it both start with all c = 1, as the layer without coefficients.
        impl: which implementation of the operation to use; see `purecaps.ops.caps_conv2d`.

    Shape:
        [B, C, H, W, g, m, n] -> [B, O, H', W', g, m, p]. `weight` is [kh, kw, C, O, g, n, p], `coupling` None or
        [kh, kw, C, O].
    """

    coupling: nn.Parameter | None

    def __init__(
        self,
        in_caps: int,
        out_caps: int,
        capsule: tuple[int, int, int],
        kernel_size: IntOrPair = 3,
        *,
        stride: IntOrPair = 1,
        padding: IntOrPair = 0,
        dilation: IntOrPair = 1,
        init: str = "msra",
        init_correlation: float = 0.0,
        coefficients: str | None = None,
        impl: str = "auto",
    ) -> None:
        super().__init__()
        for name, value in (("in_caps", in_caps), ("out_caps", out_caps)):
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name}: expected an int >= 1, got {value!r}")
        sizes = tuple(capsule) if isinstance(capsule, Sequence) else ()
        if len(sizes) != 3 or any(not isinstance(size, int) or size < 1 for size in sizes):
            raise ConfigError(f"capsule: expected three sizes (g, n, p) of at least 1, got {capsule!r}")
        g, n, p = sizes
        kh, kw = as_pair(kernel_size, "kernel_size", least=1)
        self.geometry = as_geometry(stride, padding, dilation)
        registry.check_name(impl)
        self.impl = impl
        check_correlation(init_correlation)
        self.init, self.init_correlation = init, init_correlation
        if coefficients is not None and coefficients not in COEFFICIENTS:
            raise unknown_name("coefficients", coefficients, COEFFICIENTS)
        self.coefficients = coefficients
        shape = (kh, kw, in_caps, out_caps, g, n, p)
        fan(shape, init)  # an unknown scheme is refused before anything is allocated
        self.weight = nn.Parameter(empty_kernel(shape))
        coupling = None if coefficients is None else nn.Parameter(torch.empty(shape[:4]))
        self.register_parameter("coupling", coupling)
        self.reset_parameters()

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draws new weights by the layer's scheme; all coefficients become 1."""
        initialise(self.weight, self.init, generator, correlation=self.init_correlation)
        if self.coupling is not None:
            nn.init.constant_(self.coupling, 1.0 if self.coefficients == "free" else 0.0)

    def kernel(self) -> Tensor:
        """What the layer convolves with [kh, kw, C, O, g, n, p]: its weight, with coefficients multiplied in.

        (c U) @ W = U @ (c W): the paper's argument that W can learn what c would, and why every implementation of the
        operation serves a layer with coefficients.
        """
        if self.coupling is None:
            return self.weight
        c = self.coupling if self.coefficients == "free" else self.coupling.softmax(dim=3) * self.weight.shape[3]
        return self.weight * c[..., None, None, None]

    @property
    def kernel_size(self) -> Pair:
        return (self.weight.shape[0], self.weight.shape[1])

    @property
    def capsule(self) -> tuple[int, int, int]:
        """The kernel capsule's (g, n, p)."""
        g, n, p = self.weight.shape[4:]
        return (g, n, p)

    def fit(self, u: Tensor) -> Tensor:
        """The input's capsules refolded into this layer's (g, m, n)."""
        if u.dim() != 7:
            raise ConfigError(f"u: expected 7 dimensions [B, C, H, W, g, m, n], got {u.dim()}: {shape_text(u.shape)}")
        g, n, _ = self.capsule
        if u.shape[4] == g and u.shape[6] == n:
            return u
        return refold(u, (g, rows_to_fill(u, g, n), n))

    def forward(self, u: Tensor) -> Tensor:
        stride, padding, dilation = self.geometry
        return caps_conv2d(
            self.fit(u), self.kernel(), stride=stride, padding=padding, dilation=dilation, impl=self.impl
        )

    def extra_repr(self) -> str:
        """The kernel in the paper's notation, such as 3x3x1x4x(1x8x16), stride 1."""
        shape = self.weight.shape
        text = f"{times(shape[:4])}x({times(shape[4:])})"
        for (name, value), usual in zip(self.geometry._asdict().items(), Geometry(), strict=True):
            if value != usual or name == "stride":
                text += f", {name} {value[0] if value[0] == value[1] else times(value)}"
        text += f", init {self.init}"
        for name in ("init_correlation", "coefficients"):
            text += f", {name} {getattr(self, name)}" if getattr(self, name) else ""
        return text + ("" if self.impl == "auto" else f", impl {self.impl}")


class CapsBlock(nn.Module):
    """A capsule convolution, leaky ReLU and squash: one layer of a P-CapsNet.

    Args:
        in_caps: as for `CapsConv2d`, and so are the arguments up to `impl`.
        negative_slope: what leaky ReLU multiplies negative numbers with, above 0.
        squash_chunk: None squashes each capsule as a whole, as the paper says; k squashes its row-major numbers
            in runs of k, as the authors' code does with k = 8 in hidden layers.
        squash_gradient: "exact", or "diagonal" for the diagonal of squash's Jacobian alone, as in the authors' code.

    Shape:
        [B, C, H, W, g, m, n] -> [B, O, H', W', g, m, p]
    """

    def __init__(
        self,
        in_caps: int,
        out_caps: int,
        capsule: tuple[int, int, int],
        kernel_size: IntOrPair = 3,
        *,
        stride: IntOrPair = 1,
        padding: IntOrPair = 0,
        dilation: IntOrPair = 1,
        init: str = "msra",
        init_correlation: float = 0.0,
        coefficients: str | None = None,
        impl: str = "auto",
        negative_slope: float = 0.1,
        squash_chunk: int | None = None,
        squash_gradient: str = "exact",
    ) -> None:
        super().__init__()
        check_slope(negative_slope)
        if squash_chunk is not None and not is_count(squash_chunk):
            raise ConfigError(f"squash_chunk: expected None or an int >= 1, got {squash_chunk!r}")
        check_gradient(squash_gradient)
        self.conv = CapsConv2d(
            in_caps,
            out_caps,
            capsule,
            kernel_size,
            stride=stride,
            padding=padding,
            dilation=dilation,
            init=init,
            init_correlation=init_correlation,
            coefficients=coefficients,
            impl=impl,
        )
        self.negative_slope = negative_slope
        self.squash_chunk = squash_chunk
        self.squash_gradient = squash_gradient

    @property
    def spec(self) -> Block:
        """What the block does besides its kernel."""
        return Block(self.conv.geometry, self.negative_slope, self.squash_chunk, self.squash_gradient)

    def forward(self, u: Tensor) -> Tensor:
        conv = self.conv
        if is_hooked(conv) or not computes_as(conv, CapsConv2d):
            v = conv(u)
            if self.squash_chunk is not None:
                check_chunk(self.squash_chunk, v.shape[-3:].numel())
            return leaky_squash(v, self.negative_slope, self.squash_chunk, self.squash_gradient)
        stride, padding, dilation = conv.geometry
        return caps_block(
            conv.fit(u),
            conv.kernel(),
            stride=stride,
            padding=padding,
            dilation=dilation,
            negative_slope=self.negative_slope,
            squash_chunk=self.squash_chunk,
            squash_gradient=self.squash_gradient,
            impl=conv.impl,
        )

    def extra_repr(self) -> str:
        squashed = "whole capsule" if self.squash_chunk is None else f"chunks of {self.squash_chunk}"
        backwards = "" if self.squash_gradient == "exact" else f", {self.squash_gradient} gradient"
        return f"leaky ReLU {self.negative_slope}, squash over {squashed}{backwards}"
