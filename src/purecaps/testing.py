"""Oracles and assertions for capsule operations, for our tests and for those of implementations to come."""

from __future__ import annotations

import torch
from torch import Tensor

from purecaps.ops import caps_block, caps_conv2d
from purecaps.ops.geometry import IntOrPair

# Rounding errors of a sum grow with the root of its length, not with the length: a factor on the root.
_SAFETY = 2.0


def assert_conv_matches_reference(
    impl: str,
    u: Tensor,
    w: Tensor,
    *,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
) -> None:
    """Holds an implementation of the capsule convolution against the float64 specification.

    Outputs and both gradients are compared element by element. The tolerance is derived, not chosen: the operation
    is bilinear, so the same operation on absolute values bounds what rounding can do to each element.

    Args:
        impl: the implementation's name.
        u: input capsules [B, C, H, W, g, m, n], in the precision to test.
        w: capsule kernel [kh, kw, C, O, g, n, p].
        stride: as for `caps_conv2d`, and so are the others.
        padding: zero capsules added on each side.
        dilation: distance between the kernel's positions.
    """
    geometry = {"stride": stride, "padding": padding, "dilation": dilation}
    got_u, got_w = _leaf(u, u.dtype), _leaf(w, w.dtype)
    got = caps_conv2d(got_u, got_w, impl=impl, **geometry)
    upstream = torch.randn(got.shape, generator=torch.Generator().manual_seed(1)).to(u)
    got.backward(upstream)

    true = _reference(u.double(), w.double(), upstream.double(), geometry)
    bound = _reference(u.double().abs(), w.double().abs(), upstream.double().abs(), geometry)
    found = {"output": got, "gradient of u": got_u.grad, "gradient of w": got_w.grad}
    epsilon = torch.finfo(u.dtype).eps
    for name, length in _sum_lengths(u, w, got).items():
        tensor = found[name]
        assert tensor is not None, f"{name}: expected a tensor, got None"
        assert tensor.dtype == u.dtype, f"{name}: expected {u.dtype}, got {tensor.dtype}"
        allowed = _SAFETY * epsilon * length**0.5 * bound[name] + torch.finfo(torch.float64).tiny
        excess = ((tensor.double() - true[name]).abs() / allowed).max().item()
        assert excess <= 1, f"{name} of {impl!r}: expected within rounding of the reference, got {excess:.3g} x that"


def assert_block_matches_reference(
    impl: str,
    u: Tensor,
    w: Tensor,
    *,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    squash_chunk: int | None = None,
    negative_slope: float = 0.1,
    tolerance: float,
) -> None:
    """Holds an implementation of the whole block against the float64 specification, in outputs and gradients.

    Leaky ReLU has a kink. Rounding takes a share e of the numbers, those next to zero, over to its other side, and
    there the gradient is off by nine tenths: by the root of e in norm. So gradients in TF32 (e about 3e-4) differ by
    1 % from the specification's with every implementation. To see what an implementation itself loses in low
    precision, test it with a slope of 1, which has no kink.

    Args:
        impl: the implementation's name.
        u: input capsules, in the precision to test.
        w: capsule kernel.
        stride: step between output positions.
        padding: zero capsules added on each side.
        dilation: distance between the kernel's positions.
        squash_chunk: as for `caps_block`.
        negative_slope: likewise.
        tolerance: largest allowed |got - true| / |true| over a whole tensor.
    """
    upstream = None
    results = []
    for name, dtype in ((impl, u.dtype), ("reference", torch.float64)):
        this_u, this_w = _leaf(u, dtype), _leaf(w, dtype)
        y = caps_block(
            this_u, this_w, stride=stride, padding=padding, dilation=dilation, squash_chunk=squash_chunk,
            negative_slope=negative_slope, impl=name,
        )  # fmt: skip
        if upstream is None:
            upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y)
        y.backward(upstream.to(y.dtype))
        results.append((y.detach(), this_u.grad, this_w.grad))
    for what, got, true in zip(("output", "gradient of u", "gradient of w"), *results, strict=True):
        assert got is not None
        assert true is not None
        assert_close_in_norm(got, true, tolerance, f"{what} of {impl!r}")


def assert_close_in_norm(got: Tensor, true: Tensor, tolerance: float, what: str) -> None:
    """|got - true| / |true| over the whole tensor is within the tolerance: NaN never is, and of zeros zeros alone."""
    off, size = (torch.linalg.vector_norm(each).item() for each in (got.double() - true, true))
    assert off <= tolerance * size, f"{what}: expected |got - true| up to {tolerance:.3g} of {size:.3g}, got {off:.3g}"


def _leaf(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.detach().to(dtype).clone().requires_grad_()


def _reference(u: Tensor, w: Tensor, upstream: Tensor, geometry: dict[str, IntOrPair]) -> dict[str, Tensor]:
    u, w = _leaf(u, u.dtype), _leaf(w, w.dtype)
    v = caps_conv2d(u, w, impl="reference", **geometry)
    v.backward(upstream)
    assert u.grad is not None
    assert w.grad is not None
    return {"output": v.detach(), "gradient of u": u.grad, "gradient of w": w.grad}


def _sum_lengths(u: Tensor, w: Tensor, v: Tensor) -> dict[str, int]:
    """How many products are summed into one number of each result."""
    kh, kw, C, O, _, n, p = w.shape
    B, _, H, W, _, m, _ = v.shape
    return {"output": kh * kw * C * n, "gradient of u": kh * kw * O * p, "gradient of w": B * H * W * m}
