"""The public functions: check the arguments, choose an implementation, call it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops import activation, registry
from purecaps.ops.geometry import Block, IntOrPair
from purecaps.ops.validation import (
    as_geometry,
    check_caps_conv2d,
    check_chunk,
    check_floating,
    check_gradient,
    check_refold,
    check_slope,
    shape_text,
)


def caps_conv2d(
    u: Tensor,
    w: Tensor,
    *,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    impl: str = "auto",
) -> Tensor:
    """Capsule convolution: V[b,o,y,x,g] = sum over c,i,j of U[b,c,ys+id,xs+jd,g] @ W[i,j,c,o,g].

    Args:
        u: input capsules [B, C, H, W, g, m, n].
        w: capsule kernel [kh, kw, C, O, g, n, p].
        stride: step between output positions, an int or a (height, width) pair.
        padding: zero capsules added on each side.
        dilation: distance between the kernel's positions.
        impl: "auto", "conv" (one grouped conv2d), "cpu" (the same, with whole blocks in a CPU's order of memory),
            "triton" (fused kernels on a GPU) or "reference" (einsum, the specification).

    Returns:
        Output capsules [B, O, H', W', g, m, p].
    """
    geometry = as_geometry(stride, padding, dilation)
    check_caps_conv2d(u, w, geometry)
    _compile_for_size(u)
    return registry.resolve(impl, u, w, geometry).caps_conv2d(u, w, geometry)


def caps_block(
    u: Tensor,
    w: Tensor,
    *,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    negative_slope: float = 0.1,
    squash_chunk: int | None = None,
    squash_gradient: str = "exact",
    impl: str = "auto",
) -> Tensor:
    """A whole capsule layer: convolution, leaky ReLU, squash.

    Args:
        u: input capsules [B, C, H, W, g, m, n].
        w: capsule kernel [kh, kw, C, O, g, n, p].
        stride: step between output positions, an int or a (height, width) pair.
        padding: zero capsules added on each side.
        dilation: distance between the kernel's positions.
        negative_slope: what leaky ReLU multiplies negative numbers with, above 0.
        squash_chunk: None squashes the capsule as a whole; k squashes its row-major numbers in runs of k.
        squash_gradient: "exact", or "diagonal", which keeps the diagonal of squash's Jacobian alone, as the authors'
            code does; by "conv" and "reference" only.
        impl: "auto" or an implementation's name, as for `caps_conv2d`.

    Returns:
        Squashed capsules [B, O, H', W', g, m, p].
    """
    geometry = as_geometry(stride, padding, dilation)
    check_caps_conv2d(u, w, geometry)
    _compile_for_size(u)
    check_slope(negative_slope)
    if squash_chunk is not None:
        check_chunk(squash_chunk, u.shape[4] * u.shape[5] * w.shape[6])
    check_gradient(squash_gradient)
    chosen = registry.resolve(impl, u, w, geometry, squash_chunk, squash_gradient)
    if squash_gradient == "exact":
        return chosen.caps_block(u, w, geometry, negative_slope, squash_chunk)
    v = chosen.caps_conv2d(u, w, geometry)
    return activation.leaky_squash(v, negative_slope, squash_chunk, squash_gradient)


def caps_blocks(
    u: Tensor, weights: Sequence[Tensor], blocks: Sequence[Block], impl: str = "auto"
) -> tuple[Tensor, Tensor] | None:
    """Several blocks in turn, capsules refolded between them, where an implementation has a faster way for all of them.

    Args:
        u: input capsules [B, C, H, W, g, m, n] of the first block.
        weights: each block's kernel [kh, kw, C, O, g, n, p].
        blocks: the rest of each block.
        impl: "auto" or an implementation's name, as for `caps_conv2d`.

    Returns:
        The last block's capsules [B, O, H', W', g, m, p] and their lengths [B, O, H', W'] before squashing; None where
        the blocks are to be called one by one.
    """
    check_caps_conv2d(u, weights[0], blocks[0].geometry)
    _compile_for_size(u)
    chosen = registry.resolve(
        impl, u, weights[0], blocks[0].geometry, blocks[0].squash_chunk, blocks[0].squash_gradient
    )
    return None if chosen.caps_blocks is None else chosen.caps_blocks(u, weights, blocks)


def squash(v: Tensor, dim: int | tuple[int, ...] = (-3, -2, -1)) -> Tensor:
    """Shrinks each capsule to a length below 1 and keeps its direction: (1 - exp(-|v|)) v / |v|.

    Zero capsules stay zero, and their gradient is the limit, the identity. Lengths may be up to 1e19 in float32, beyond
    which their squares overflow.

    Args:
        v: capsules, [..., g, m, p] for the default `dim`.
        dim: the dimensions that make up one capsule.
    """
    check_floating(v, "v")
    dims = (dim,) if isinstance(dim, int) else tuple(dim)
    if not dims or any(not -v.dim() <= d < v.dim() for d in dims):
        raise ConfigError(f"dim: expected dimensions of v {shape_text(v.shape)}, got {dim!r}")
    if len({d % v.dim() for d in dims}) < len(dims):
        raise ConfigError(f"dim: expected each dimension of v {shape_text(v.shape)} once, got {dim!r}")
    # Leaky ReLU of slope 1 is the identity, so this is the fused activation's squash alone.
    return activation.apply_leaky_squash(v, 1.0, dims)


def refold(v: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """The numbers of each capsule, row-major, in another rank-3 shape; a view where the strides allow one.

    Args:
        v: capsules [..., g, m, p].
        shape: the new (g, m, n), with the same number of numbers.
    """
    check_refold(v, shape)
    return v.reshape(*v.shape[:-3], *shape)


def _compile_for_size(u: Tensor) -> None:
    """Has torch.compile make code for this height and width alone; batches may be of any size.

    With symbols in their place the compiler ends in an error: maps are views of rows of (O, p), and it cannot sort the
    strides of such a view. torch.export does not come by here, unless it is strict, and keeps its symbols.
    """
    if torch.compiler.is_dynamo_compiling():
        for size in u.shape[2:4]:
            list(range(size))  # what has to be a number, not a symbol, becomes one
