# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator,no-any-return"
"""A whole small network in one kernel: images in, lengths or classes out, nothing in memory between the layers.

A program takes a block of images and walks down their rows. Rows of the product are (image, m), columns are a whole
row of a map (x, c, n), and each layer is three products with band matrices (bands.py), one for each kernel row. So a
layer's output row has the very shape that the next layer multiplies, and all that has to be kept are the last three
rows of each map: they stay in registers and rotate as the loop goes on, as in a line buffer. The fifth layer adds up
as rows of the fourth come in. No windows are gathered, and no index is computed but those of the image.

Weighed against it:
- Windows gathered from a scratch buffer in the cache, layer by layer: no zeros in the matrices, but every map is
  written and read back nine times over in pieces of 8 bytes, and a kernel of 4 columns leaves half of a tensor core
  idle as well.
- Dense matrices for whole maps: 2704 x 3872 numbers in the second layer alone.
- The first layer without tensor cores, nine products a number: more instructions, by the compiler's count, and more
  exchanges between threads than the band.

For pcapsnet2 the padded products are 1.7 million multiply-adds an image, eight times the network's own: at 50 million
images a second 170 TFLOP/s, a fifth of what an H200 multiplies in float16. By the compiler's count, the activation
costs more instructions than the products do.
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
    return held if HOLD else load_matrix(ptr, i, K, N)


@triton.jit
def short_squash_factor(squares):
    """f(r) from r^2, to the 11 bits that half precision keeps.

    Every thread that holds a piece of a capsule computes the factor, so it is as dear as the products: two special
    functions and a handful of additions here, thirty instructions in `squash_factor`.
    """
    safe = tl.maximum(squares, 1e-24)
    reciprocal = tl.rsqrt(safe)
    r = safe * reciprocal
    near = 1 - r * (0.5 - r * (1 / 6))
    return tl.where(safe < 4e-4, near, reciprocal - tl.exp(-r) * reciprocal)


@triton.jit
def squashed(total, slope, M: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """Leaky ReLU and squash of a row of capsules, in the precision that the next layer multiplies in."""
    total = tl.where(total > 0, total, total * slope)
    squares = sum_capsules(total * total, total.shape[0], total.shape[1], M, WIDTH)
    exact: tl.constexpr = DTYPE == tl.float32  # noqa: SIM300
    factor = squash_factor(tl.sqrt(squares)) if exact else short_squash_factor(squares)
    return (total * spread_capsules(factor, total.shape[0], total.shape[1], M, WIDTH)).to(DTYPE)


@triton.jit
def product(
    row0, row1, row2, w_ptr, held, K: tl.constexpr, N: tl.constexpr, HOLD: tl.constexpr, PRECISION: tl.constexpr
):
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


@triton.jit(do_not_specialize=["batch", "zero"])
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
    zero,
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
    HOLD1: tl.constexpr,
    HOLD2: tl.constexpr,
    HOLD3: tl.constexpr,
    CLASS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """HOLD1 to 3 keep a layer's matrices in shared memory; CLASS writes the longest capsule, not the lengths.

    `zero` is 0, which the compiler must not know: times the row and added to a pointer, it keeps loads of matrices that
    are not held inside of the loop. Moved out of it, all of them would be held at once.
    """
    dtype: tl.constexpr = w1_ptr.dtype.element_ty
    rows: tl.constexpr = IMAGES * M
    k = tl.arange(0, K1)
    scale = tl.load(scale_ptr + k)
    shift = tl.load(shift_ptr + k)
    held1 = (0, 0, 0)
    held2 = (0, 0, 0)
    held3 = (0, 0, 0)
    if HOLD1:
        held1 = (
            load_matrix(w1_ptr, 0, K1, M * N1),
            load_matrix(w1_ptr, 1, K1, M * N1),
            load_matrix(w1_ptr, 2, K1, M * N1),
        )
    if HOLD2:
        held2 = (load_matrix(w2_ptr, 0, N1, N2), load_matrix(w2_ptr, 1, N1, N2), load_matrix(w2_ptr, 2, N1, N2))
    if HOLD3:
        held3 = (load_matrix(w3_ptr, 0, N2, N3), load_matrix(w3_ptr, 1, N2, N3), load_matrix(w3_ptr, 2, N2, N3))

    for first_image in range(tl.program_id(0) * IMAGES, batch, tl.num_programs(0) * IMAGES):
        image = first_image + tl.arange(0, IMAGES)
        real = image < batch
        corners = images_ptr + image.to(tl.int64) * (CHANNELS * H * W)
        # Zeros of their own for each: of names for one tensor, the compiler takes those that a loop moves on among
        # themselves for constants.
        a0 = tl.zeros((rows, N1), dtype=dtype)
        a1 = tl.zeros((rows, N1), dtype=dtype)
        a2 = tl.zeros((rows, N1), dtype=dtype)
        b0 = tl.zeros((rows, N2), dtype=dtype)
        b1 = tl.zeros((rows, N2), dtype=dtype)
        b2 = tl.zeros((rows, N2), dtype=dtype)
        c0 = tl.zeros((rows, N3), dtype=dtype)
        c1 = tl.zeros((rows, N3), dtype=dtype)
        c2 = tl.zeros((rows, N3), dtype=dtype)
        y = 0
        pin = 0
        # What the first output rows need beyond the stride that every row brings in.
        for _ in tl.static_range(3 - STRIDE2):
            a0, a1 = a1, a2
            pin = tl.multiple_of(y * zero, 16)
            a2 = first_row(
                corners, real, scale, shift, y, w1_ptr + pin, held1, slope, H, W, CHANNELS, M, K1, N1,
                WIDTH1, STRIDE1, IMAGES, HOLD1, dtype, PRECISION,
            )  # fmt: skip
            y += 1
        for _ in tl.static_range(3 - STRIDE3):
            for _ in tl.static_range(STRIDE2):
                a0, a1 = a1, a2
                pin = tl.multiple_of(y * zero, 16)
                a2 = first_row(
                    corners, real, scale, shift, y, w1_ptr + pin, held1, slope, H, W, CHANNELS, M, K1, N1,
                    WIDTH1, STRIDE1, IMAGES, HOLD1, dtype, PRECISION,
                )  # fmt: skip
                y += 1
            b0, b1 = b1, b2
            total2 = product(a0, a1, a2, w2_ptr + pin, held2, N1, N2, HOLD2, PRECISION)
            b2 = squashed(total2, slope, M, WIDTH2, dtype)

        last = tl.zeros((rows, N5), dtype=tl.float32)
        for row in range(ROWS3):
            for _ in tl.static_range(STRIDE3):
                for _ in tl.static_range(STRIDE2):
                    a0, a1 = a1, a2
                    pin = tl.multiple_of(y * zero, 16)
                    a2 = first_row(
                        corners, real, scale, shift, y, w1_ptr + pin, held1, slope, H, W, CHANNELS, M, K1, N1,
                        WIDTH1, STRIDE1, IMAGES, HOLD1, dtype, PRECISION,
                    )  # fmt: skip
                    y += 1
                b0, b1 = b1, b2
                total2 = product(a0, a1, a2, w2_ptr + pin, held2, N1, N2, HOLD2, PRECISION)
                b2 = squashed(total2, slope, M, WIDTH2, dtype)
            c0, c1 = c1, c2
            total3 = product(b0, b1, b2, w3_ptr + pin, held3, N2, N3, HOLD3, PRECISION)
            c2 = squashed(total3, slope, M, WIDTH3, dtype)
            # Before three rows have come in, and between strides, there is no such output row: its weights are zeros.
            ahead = row - 2
            position = tl.where(ahead % STRIDE4 == 0, ahead // STRIDE4, -1)
            total4 = product(c0, c1, c2, w4_ptr + pin, held3, N3, N4, False, PRECISION)
            d = squashed(total4, slope, M, WIDTH4, dtype)
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


MOST_ROWS = 32  # of a product, see `plan`


@dataclass(frozen=True)
class Launch:
    """How a network is spread over a GPU; numbers that change its speed alone.

    Args:
        images: images that one program takes at a time, a power of two.
        warps: of 32 threads, in a program.
        hold: layers, of the first three, whose matrices stay in shared memory; others are read from the cache.
        programs: at most so many for each multiprocessor; each goes on to further images.
        registers: the most that a thread may have, so that more programs fit a multiprocessor; None leaves it to the
            compiler.
    """

    images: int
    warps: int
    hold: tuple[int, ...]
    programs: int
    registers: int | None = None


def plan(bands: Bands) -> Launch:
    """Launches that were right on an H200; their speed is not measured yet.

    32 rows, not more: from 64 rows and four warps on, Triton 3.6 multiplies with Hopper's warp-group instructions, and
    15 of 27 such launches gave wrong lengths or read outside of shared memory. All 21 with fewer rows were right.
    """
    second = bands.matrices[1]
    if second.numel() * second.element_size() <= 48 * 1024:
        return Launch(images=MOST_ROWS // bands.m, warps=4, hold=(), programs=2)
    return Launch(images=MOST_ROWS // bands.m, warps=8, hold=(), programs=1)


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
        chosen = launch or plan(bands)
        programs = min(triton.cdiv(batch, chosen.images), chosen.programs * _processors(images.device))
        network_kernel[(programs,)](
            images,
            scale,
            shift,
            *bands.matrices,
            out,
            batch,
            0,
            bands.slope,
            **constants(bands),
            IMAGES=chosen.images,
            HOLD1=1 in chosen.hold,
            HOLD2=2 in chosen.hold,
            HOLD3=3 in chosen.hold,
            CLASS=classes,
            PRECISION=precision,
            num_warps=chosen.warps,
            num_stages=1,
            maxnreg=chosen.registers,
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
