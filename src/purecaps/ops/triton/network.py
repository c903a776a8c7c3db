# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator,no-any-return"
"""A whole small network in one kernel: images in, lengths or classes out, nothing in memory between the layers.

A program takes a few images and walks down their rows. Each layer is three products with band matrices (bands.py), one
for each kernel row, and all that has to be kept are the last three rows of each map: they stay in registers and rotate
as the loop goes on, as in a line buffer. The fifth layer adds up as rows of the fourth come in. No windows are
gathered, and no index is computed but those of the image.

Rows of the first two products are (image, block, m), with one block's numbers as columns; from the third layer on they
are (image, m), with a whole row of a map as columns.

Weighed against it:
- Whole rows from the first layer on: 48 KB of matrices each for the first two layers of pcapsnet2, read anew for every
  row of the map. Blocks need 24 and 12, which stay in shared memory, and half of the products.
- Windows gathered from a scratch buffer in the cache, layer by layer: no zeros in the matrices, but every map is
  written and read back nine times over in pieces of 8 bytes, and a kernel of 4 columns leaves half of a tensor core
  idle as well.
- Dense matrices for whole maps: 2704 x 3872 numbers in the second layer alone.
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
from purecaps.ops.triton.parts import divided, length_and_factor, spread_capsules, squash_factor, sum_capsules


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
def factor_of(squares, DTYPE: tl.constexpr):
    """What squash multiplies a capsule with, from the sum of its squares."""
    exact: tl.constexpr = DTYPE == tl.float32  # noqa: SIM300
    _, factor = length_and_factor(squares, exact)
    return factor


@triton.jit
def squashed(total, slope, M: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr):
    """Leaky ReLU and squash of a row of capsules, in the precision that the next layer multiplies in."""
    total = tl.where(total > 0, total, total * slope)
    factor = factor_of(sum_capsules(total * total, total.shape[0], total.shape[1], M, WIDTH), DTYPE)
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
    corners, real, column, scale, shift, y, H: tl.constexpr, W: tl.constexpr, CHANNELS: tl.constexpr,
    WINDOW: tl.constexpr, K: tl.constexpr, DTYPE: tl.constexpr,
):  # fmt: skip
    """Row y of every block, (c, pixel) side by side; zeros beyond the image."""
    k = tl.arange(0, K)
    if CHANNELS == 1:
        c = k // WINDOW  # a comparison: K is less than two windows
        x = k % WINDOW
    else:
        c, x = divided(k, WINDOW, K, WINDOW & -WINDOW)
    at = c * (H * W) + y * W + x
    inside = (column[:, None] + x[None, :] < W) & (k < CHANNELS * WINDOW)[None, :]
    pixels = tl.load(corners[:, None] + at[None, :], mask=real[:, None] & inside, other=0)
    return (pixels.to(tl.float32) * scale[None, :] + shift[None, :]).to(DTYPE)


@triton.jit
def first_row(
    corners, real, column, scale, shift, y, w_ptr, held, slope, H: tl.constexpr, W: tl.constexpr,
    CHANNELS: tl.constexpr, WINDOW: tl.constexpr, M: tl.constexpr, K: tl.constexpr, N: tl.constexpr,
    WIDTH: tl.constexpr, STRIDE: tl.constexpr, HOLD: tl.constexpr, DTYPE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Row y of the first map: columns (m, x, o, n) of a row (image, block) become rows (image, block, m)."""
    row0 = pixel_row(corners, real, column, scale, shift, y * STRIDE, H, W, CHANNELS, WINDOW, K, DTYPE)
    row1 = pixel_row(corners, real, column, scale, shift, y * STRIDE + 1, H, W, CHANNELS, WINDOW, K, DTYPE)
    row2 = pixel_row(corners, real, column, scale, shift, y * STRIDE + 2, H, W, CHANNELS, WINDOW, K, DTYPE)
    total = product(row0, row1, row2, w_ptr, held, K, M * N, HOLD, PRECISION)
    total = tl.where(total > 0, total, total * slope)
    rows: tl.constexpr = total.shape[0]
    # Here a capsule's rows lie side by side: summed before they are torn apart, it takes no exchange between threads.
    squares = tl.sum(tl.reshape(total * total, (rows, M, N // WIDTH, WIDTH)), axis=3)
    factor = factor_of(tl.sum(squares, axis=1), DTYPE)
    spread = tl.broadcast_to(factor[:, None, :, None], (rows, M, N // WIDTH, WIDTH))
    return tl.reshape((total * tl.reshape(spread, (rows, M * N))).to(DTYPE), (rows * M, N))


@triton.jit
def joined(blocks, IMAGES: tl.constexpr, BLOCKS: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Rows (image, block, m) of N numbers as rows (image, m) of all blocks' numbers."""
    apart = tl.permute(tl.reshape(blocks, (IMAGES, BLOCKS, M, N)), (0, 2, 1, 3))
    return tl.reshape(apart, (IMAGES * M, BLOCKS * N))


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
    WINDOW: tl.constexpr,
    STEP: tl.constexpr,
    BLOCKS: tl.constexpr,
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
    HOLD4: tl.constexpr,
    CLASS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """HOLD1 to 4 keep a layer's matrices in shared memory; CLASS writes the longest capsule, not the lengths.

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
    held4 = (0, 0, 0)
    if HOLD1:
        held1 = (
            load_matrix(w1_ptr, 0, K1, M * N1),
            load_matrix(w1_ptr, 1, K1, M * N1),
            load_matrix(w1_ptr, 2, K1, M * N1),
        )
    if HOLD2:
        held2 = (load_matrix(w2_ptr, 0, N1, N2), load_matrix(w2_ptr, 1, N1, N2), load_matrix(w2_ptr, 2, N1, N2))
    if HOLD3:
        held3 = (
            load_matrix(w3_ptr, 0, BLOCKS * N2, N3),
            load_matrix(w3_ptr, 1, BLOCKS * N2, N3),
            load_matrix(w3_ptr, 2, BLOCKS * N2, N3),
        )
    if HOLD4:
        held4 = (load_matrix(w4_ptr, 0, N3, N4), load_matrix(w4_ptr, 1, N3, N4), load_matrix(w4_ptr, 2, N3, N4))

    for first_image in range(tl.program_id(0) * IMAGES, batch, tl.num_programs(0) * IMAGES):
        cut = tl.arange(0, IMAGES * BLOCKS)
        column = cut % BLOCKS * STEP
        corners = images_ptr + (first_image + cut // BLOCKS).to(tl.int64) * (CHANNELS * H * W) + column
        real = first_image + cut // BLOCKS < batch
        # Zeros of their own for each: of names for one tensor, the compiler takes those that a loop moves on among
        # themselves for constants.
        a0 = tl.zeros((BLOCKS * rows, N1), dtype=dtype)
        a1 = tl.zeros((BLOCKS * rows, N1), dtype=dtype)
        a2 = tl.zeros((BLOCKS * rows, N1), dtype=dtype)
        b0 = tl.zeros((rows, BLOCKS * N2), dtype=dtype)
        b1 = tl.zeros((rows, BLOCKS * N2), dtype=dtype)
        b2 = tl.zeros((rows, BLOCKS * N2), dtype=dtype)
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
                corners, real, column, scale, shift, y, w1_ptr + pin, held1, slope, H, W, CHANNELS, WINDOW, M,
                K1, N1, WIDTH1, STRIDE1, HOLD1, dtype, PRECISION,
            )  # fmt: skip
            y += 1
        for _ in tl.static_range(3 - STRIDE3):
            for _ in tl.static_range(STRIDE2):
                a0, a1 = a1, a2
                pin = tl.multiple_of(y * zero, 16)
                a2 = first_row(
                    corners, real, column, scale, shift, y, w1_ptr + pin, held1, slope, H, W, CHANNELS, WINDOW, M,
                    K1, N1, WIDTH1, STRIDE1, HOLD1, dtype, PRECISION,
                )  # fmt: skip
                y += 1
            b0, b1 = b1, b2
            total2 = product(a0, a1, a2, w2_ptr + pin, held2, N1, N2, HOLD2, PRECISION)
            b2 = joined(squashed(total2, slope, M, WIDTH2, dtype), IMAGES, BLOCKS, M, N2)

        last = tl.zeros((rows, N5), dtype=tl.float32)
        for row in range(ROWS3):
            for _ in tl.static_range(STRIDE3):
                for _ in tl.static_range(STRIDE2):
                    a0, a1 = a1, a2
                    pin = tl.multiple_of(y * zero, 16)
                    a2 = first_row(
                        corners, real, column, scale, shift, y, w1_ptr + pin, held1, slope, H, W, CHANNELS, WINDOW, M,
                        K1, N1, WIDTH1, STRIDE1, HOLD1, dtype, PRECISION,
                    )  # fmt: skip
                    y += 1
                b0, b1 = b1, b2
                total2 = product(a0, a1, a2, w2_ptr + pin, held2, N1, N2, HOLD2, PRECISION)
                b2 = joined(squashed(total2, slope, M, WIDTH2, dtype), IMAGES, BLOCKS, M, N2)
            c0, c1 = c1, c2
            total3 = product(b0, b1, b2, w3_ptr + pin, held3, BLOCKS * N2, N3, HOLD3, PRECISION)
            c2 = squashed(total3, slope, M, WIDTH3, dtype)
            # Before three rows have come in, and between strides, there is no such output row: its weights are zeros.
            ahead = row - 2
            position = tl.where(ahead % STRIDE4 == 0, ahead // STRIDE4, -1)
            total4 = product(c0, c1, c2, w4_ptr + pin, held4, N3, N4, HOLD4, PRECISION)
            d = squashed(total4, slope, M, WIDTH4, dtype)
            last = tl.dot(d, load_matrix(w5_ptr, position, N4, N5), last, input_precision=PRECISION)

        last = tl.where(last > 0, last, last * slope)
        r = tl.sqrt(sum_capsules(last * last, rows, N5, M, WIDTH5))
        lengths = r * squash_factor(r)
        kind = tl.arange(0, N5 // WIDTH5)
        image = first_image + tl.arange(0, IMAGES)
        real_image = image < batch
        if CLASS:
            longest = tl.argmax(tl.where((kind < CLASSES)[None, :], lengths, -1.0), axis=1)
            tl.store(out_ptr + image, longest.to(tl.int64), mask=real_image)
        else:
            at = image.to(tl.int64)[:, None] * CLASSES + kind[None, :]
            tl.store(out_ptr + at, lengths, mask=real_image[:, None] & (kind < CLASSES)[None, :])


@dataclass(frozen=True)
class Launch:
    """How a network is spread over a GPU; numbers that change its speed alone.

    Args:
        images: images that one program takes at a time, a power of two.
        warps: of 32 threads, in a program.
        hold: layers, of the first four, whose matrices stay in shared memory; others are read from the cache.
        programs: at most so many for each multiprocessor; each goes on to further images.
        registers: the most that a thread may have, so that more programs fit a multiprocessor; None leaves it to the
            compiler.
    """

    images: int
    warps: int
    hold: tuple[int, ...]
    programs: int
    registers: int | None = None


# Of a product, see `plan`.
MOST_ROWS = 32


def fits_shared_memory(bands: Bands) -> bool:
    """Whether the matrices of the first four layers leave room beside them for two programs on a multiprocessor."""
    return sum(matrix.numel() * matrix.element_size() for matrix in bands.matrices[:4]) <= 96 * 1024


def plan(bands: Bands) -> Launch:
    """What `benchmarks/tune_network.py` found on an H200 for pcapsnet1 and 2; a guess for larger networks.

    Products stay below 64 rows: from there on, and with four warps, Triton 3.6 multiplies with Hopper's warp-group
    instructions, and 15 of 27 such launches of this kernel's first form gave wrong lengths or read outside of shared
    memory on an H200. All 21 others were right.
    """
    images = max(1, MOST_ROWS // (bands.blocks * bands.m))
    if fits_shared_memory(bands):
        return Launch(images, warps=4, hold=(1, 2), programs=8, registers=128)
    return Launch(images, warps=8, hold=(), programs=1)


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
        scale: [K] float32, what each number of a block (c, pixel) is multiplied with.
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
            HOLD4=4 in chosen.hold,
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
    named |= {"WINDOW": bands.window, "STEP": bands.step, "BLOCKS": bands.blocks, "CLASSES": bands.classes}
    named |= {"M": bands.m, "K1": bands.matrices[0].shape[1], "N1": bands.matrices[1].shape[1]}
    for layer in range(1, 5):
        named[f"N{layer + 1}"] = bands.matrices[layer].shape[2]
    named |= {f"WIDTH{layer + 1}": width for layer, width in enumerate(bands.widths)}
    return named | {f"STRIDE{layer + 1}": bands.strides[layer][0] for layer in range(4)}


@functools.cache
def _processors(device: torch.device) -> int:
    # In the interpreter programs run one after the other.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
