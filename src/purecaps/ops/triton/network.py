# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator,no-any-return"
"""A whole small network in one kernel: images in, lengths or classes out, nothing in memory between the layers.

A program takes a block of images and walks down their rows. Rows of the product are (image, m), columns are a whole row of
a map (x, c, n), and each layer is three products with band matrices (bands.py), one for each kernel row. A layer's output
row so has the very shape that the next layer multiplies, and the only thing ever to be kept are the last three rows of
each map: they stay in registers and rotate as the loop goes on, as lines do in a line buffer. The fifth layer adds up as
rows of the fourth come in. No windows are gathered, and no index is computed but those of the image.

Weighed against it: windows gathered from a scratch buffer in the cache, layer by layer, need no zeros in the matrices but
write and read every map, 9 to 36 times the traffic of the images, in pieces of 8 bytes; a kernel of 4 or 8 columns fills a
tensor core no better than a band does. Dense matrices for whole maps would be 2704 x 3872 in the second layer.

For pcapsnet2 the padded products are 1.7 million multiply-adds an image, eight times the network's own: at 50 million
images a second 170 TFLOP/s, a fifth of what an H200 multiplies in float16.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton import memory
from purecaps.ops.triton.bands import Bands
from purecaps.ops.triton.parts import spread_capsules, squash_factor, sum_capsules


@triton.jit
def load_matrix(ptr, i, K: tl.constexpr, N: tl.constexpr):
    """Kernel row i of a stack of matrices [3, K, N]; zeros where i is none of them."""
    k = tl.arange(0, K)
    n = tl.arange(0, N)
    real = (i >= 0) & (i < 3)
    return tl.load(ptr + i * (K * N) + k[:, None] * N + n[None, :], mask=real, other=0.0)


@triton.jit
def load_or_keep(held, ptr, i: tl.constexpr, K: tl.constexpr, N: tl.constexpr, HOLD: tl.constexpr):
    if HOLD:
        return held
    else:
        return load_matrix(ptr, i, K, N)


@triton.jit
def squashed(total, slope, M: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """Leaky ReLU and squash of a row of capsules, in the precision that the next layer multiplies in."""
    total = tl.where(total > 0, total, total * slope)
    r = tl.sqrt(sum_capsules(total * total, total.shape[0], total.shape[1], M, WIDTH))
    return (total * spread_capsules(squash_factor(r), total.shape[0], total.shape[1], M, WIDTH)).to(DTYPE)


@triton.jit
def product(row0, row1, row2, w_ptr, held, K: tl.constexpr, N: tl.constexpr, HOLD: tl.constexpr, PRECISION: tl.constexpr):
    """Three rows of a map times the three rows of a kernel."""
    total = tl.dot(row0, load_or_keep(held[0], w_ptr, 0, K, N, HOLD), input_precision=PRECISION)
    total = tl.dot(row1, load_or_keep(held[1], w_ptr, 1, K, N, HOLD), total, input_precision=PRECISION)
    return tl.dot(row2, load_or_keep(held[2], w_ptr, 2, K, N, HOLD), total, input_precision=PRECISION)


@triton.jit
def pixel_row(
    corners, real, scale, shift, y, H: tl.constexpr, W: tl.constexpr, CHANNELS: tl.constexpr, K: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Row y of every image, (c, x) side by side."""
    k = tl.arange(0, K)
    at = k // W * (H * W) + y * W + k % W
    pixels = tl.load(corners[:, None] + at[None, :], mask=real[:, None] & (k < CHANNELS * W)[None, :], other=0)
    return (pixels.to(tl.float32) * scale[None, :] + shift[None, :]).to(DTYPE)


@triton.jit
def first_row(
    corners, real, scale, shift, y, w_ptr, held, slope, H: tl.constexpr, W: tl.constexpr, CHANNELS: tl.constexpr,
    M: tl.constexpr, K: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr, IMAGES: tl.constexpr,
    HOLD: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Row y of the first map, refolded: columns (m, x, o, n) of a row (image) become rows (image, m)."""
    row0 = pixel_row(corners, real, scale, shift, y * STRIDE, H, W, CHANNELS, K, DTYPE)
    row1 = pixel_row(corners, real, scale, shift, y * STRIDE + 1, H, W, CHANNELS, K, DTYPE)
    row2 = pixel_row(corners, real, scale, shift, y * STRIDE + 2, H, W, CHANNELS, K, DTYPE)
    total = product(row0, row1, row2, w_ptr, held, K, M * N, HOLD, PRECISION)
    return squashed(tl.reshape(total, (IMAGES * M, N)), slope, M, WIDTH, DTYPE)


@triton.jit(do_not_specialize=["batch"])
def network_kernel(
    images_ptr,
    scale_ptr,
    shift_ptr,
    w1_ptr,
    w2_ptr,
    w3_ptr,
    w4_ptr,
    w5_ptr,
    out_ptr,
    batch,
    slope,
    CHANNELS: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    ROWS3: tl.constexpr,
    CLASSES: tl.constexpr,
    M: tl.constexpr,
    K1: tl.constexpr,
    N1: tl.constexpr,
    N2: tl.constexpr,
    N3: tl.constexpr,
    N4: tl.constexpr,
    N5: tl.constexpr,
    WIDTH1: tl.constexpr,
    WIDTH2: tl.constexpr,
    WIDTH3: tl.constexpr,
    WIDTH4: tl.constexpr,
    WIDTH5: tl.constexpr,
    STRIDE1: tl.constexpr,
    STRIDE2: tl.constexpr,
    STRIDE3: tl.constexpr,
    STRIDE4: tl.constexpr,
    IMAGES: tl.constexpr,
    HOLD: tl.constexpr,
    CLASS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """HOLD keeps the first three layers' matrices in shared memory; CLASS writes the longest capsule, not the lengths."""
    dtype: tl.constexpr = w1_ptr.dtype.element_ty
    rows: tl.constexpr = IMAGES * M
    k = tl.arange(0, K1)
    scale = tl.load(scale_ptr + k)
    shift = tl.load(shift_ptr + k)
    held1 = (0, 0, 0)
    held2 = (0, 0, 0)
    held3 = (0, 0, 0)
    if HOLD:
        held1 = (
            load_matrix(w1_ptr, 0, K1, M * N1),
            load_matrix(w1_ptr, 1, K1, M * N1),
            load_matrix(w1_ptr, 2, K1, M * N1),
        )
        held2 = (load_matrix(w2_ptr, 0, N1, N2), load_matrix(w2_ptr, 1, N1, N2), load_matrix(w2_ptr, 2, N1, N2))
        held3 = (load_matrix(w3_ptr, 0, N2, N3), load_matrix(w3_ptr, 1, N2, N3), load_matrix(w3_ptr, 2, N2, N3))

    for first_image in range(tl.program_id(0) * IMAGES, batch, tl.num_programs(0) * IMAGES):
        image = first_image + tl.arange(0, IMAGES)
        real = image < batch
        corners = images_ptr + image.to(tl.int64) * (CHANNELS * H * W)
        a0 = tl.zeros((rows, N1), dtype=dtype)
        a1 = a0
        a2 = a0
        b0 = tl.zeros((rows, N2), dtype=dtype)
        b1 = b0
        b2 = b0
        c0 = tl.zeros((rows, N3), dtype=dtype)
        c1 = c0
        c2 = c0
        y = 0
        # What the first output rows need beyond the stride that every row brings in.
        for _ in tl.static_range(3 - STRIDE2):
            a0, a1 = a1, a2
            a2 = first_row(
                corners, real, scale, shift, y, w1_ptr, held1, slope, H, W, CHANNELS, M, K1, N1, WIDTH1, STRIDE1,
                IMAGES, HOLD, dtype, PRECISION,
            )  # fmt: skip
            y += 1
        for _ in tl.static_range(3 - STRIDE3):
            for _ in tl.static_range(STRIDE2):
                a0, a1 = a1, a2
                a2 = first_row(
                    corners, real, scale, shift, y, w1_ptr, held1, slope, H, W, CHANNELS, M, K1, N1, WIDTH1, STRIDE1,
                    IMAGES, HOLD, dtype, PRECISION,
                )  # fmt: skip
                y += 1
            b0, b1 = b1, b2
            b2 = squashed(product(a0, a1, a2, w2_ptr, held2, N1, N2, HOLD, PRECISION), slope, M, WIDTH2, dtype)

        last = tl.zeros((rows, N5), dtype=tl.float32)
        for row in range(ROWS3):
            for _ in tl.static_range(STRIDE3):
                for _ in tl.static_range(STRIDE2):
                    a0, a1 = a1, a2
                    a2 = first_row(
                        corners, real, scale, shift, y, w1_ptr, held1, slope, H, W, CHANNELS, M, K1, N1, WIDTH1,
                        STRIDE1, IMAGES, HOLD, dtype, PRECISION,
                    )  # fmt: skip
                    y += 1
                b0, b1 = b1, b2
                b2 = squashed(product(a0, a1, a2, w2_ptr, held2, N1, N2, HOLD, PRECISION), slope, M, WIDTH2, dtype)
            c0, c1 = c1, c2
            c2 = squashed(product(b0, b1, b2, w3_ptr, held3, N2, N3, HOLD, PRECISION), slope, M, WIDTH3, dtype)
            # Before three rows have come in, and between strides, there is no such output row: its weights are zeros.
            ahead = row - 2
            position = tl.where(ahead % STRIDE4 == 0, ahead // STRIDE4, -1)
            d = squashed(product(c0, c1, c2, w4_ptr, held3, N3, N4, False, PRECISION), slope, M, WIDTH4, dtype)
            last = tl.dot(d, load_matrix(w5_ptr, position, N4, N5), last, input_precision=PRECISION)

        last = tl.where(last > 0, last, last * slope)
        r = tl.sqrt(sum_capsules(last * last, rows, N5, M, WIDTH5))
        lengths = r * squash_factor(r)
        kind = tl.arange(0, N5 // WIDTH5)
        if CLASS:
            longest = tl.argmax(tl.where((kind < CLASSES)[None, :], lengths, -1.0), axis=1)
            tl.store(out_ptr + image, longest.to(tl.int64), mask=real)
        else:
            at = image.to(tl.int64)[:, None] * CLASSES + kind[None, :]
            tl.store(out_ptr + at, lengths, mask=real[:, None] & (kind < CLASSES)[None, :])


@dataclass(frozen=True)
class Launch:
    """How a network is spread over a GPU; numbers that change its speed alone.

    Args:
        images: images that one program takes at a time, a power of two.
        warps: of 32 threads, in a program.
        hold: whether the first three layers' matrices stay in shared memory.
        programs: at most so many for each multiprocessor; each goes on to further images.
    """

    images: int
    warps: int
    hold: bool
    programs: int


HELD_BYTES = 160 * 1024


def plan(bands: Bands, batch: int) -> Launch:
    """Sixteen images fill a warp group's 64 rows where m = 4."""
    held = sum(matrix.numel() * matrix.element_size() for matrix in bands.matrices[:3])
    images = max(16, 64 // bands.m)
    return Launch(images=images, warps=8 if max(bands.columns(layer) for layer in range(5)) > 128 else 4,
                  hold=held <= HELD_BYTES, programs=2)


def launch_network(
    images: Tensor,
    bands: Bands,
    scale: Tensor,
    shift: Tensor,
    precision: str,
    *,
    classes: bool,
    launch: Launch | None = None,
) -> Tensor:
    """Lengths [B, K] in float32, or the class of the longest capsule [B] in int64.

    Args:
        images: [B, C, H, W], contiguous, uint8 or floating.
        bands: the network, on the images' device.
        scale: [K] float32, what each number of an image row (c, x) is multiplied with.
        shift: likewise, what is added then.
        precision: of float32 products, "tf32" or "ieee".
        classes: whether classes are wanted and not lengths.
        launch: None plans it.
    """
    batch = images.shape[0]
    shape, dtype = ((batch,), torch.int64) if classes else ((batch, bands.classes), torch.float32)
    out = memory.empty(shape, dtype, images.device)
    if batch:
        chosen = launch or plan(bands, batch)
        programs = min(triton.cdiv(batch, chosen.images), chosen.programs * _processors(images.device))
        network_kernel[(programs,)](
            images,
            scale,
            shift,
            *bands.matrices,
            out,
            batch,
            bands.slope,
            **constants(bands),
            IMAGES=chosen.images,
            HOLD=chosen.hold,
            CLASS=classes,
            PRECISION=precision,
            num_warps=chosen.warps,
        )
    return out


def constants(bands: Bands) -> dict[str, int]:
    """The sizes, as the kernel's compile-time arguments."""
    named = {"CHANNELS": bands.channels, "H": bands.maps[0][0], "W": bands.maps[0][1], "ROWS3": bands.maps[3][0]}
    named |= {"CLASSES": bands.classes, "M": bands.m, "K1": bands.matrices[0].shape[1]}
    for layer in range(5):
        named |= {f"N{layer + 1}": bands.columns(layer), f"WIDTH{layer + 1}": bands.widths[layer]}
    return named | {f"STRIDE{layer + 1}": bands.strides[layer] for layer in range(4)}


@functools.cache
def _processors(device: torch.device) -> int:
    # In the interpreter programs run one after the other.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
