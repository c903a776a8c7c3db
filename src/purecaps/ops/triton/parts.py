# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator,no-any-return"
"""Pieces that several kernels share: squash's functions of a length, norms over the capsules of a tile, indices."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def squash_factor(r):
    """f(r) = (1 - exp(-r)) / r, by its series where the difference would cancel."""
    near = tl.minimum(r, 0.5)
    series = tl.full(r.shape, 1 / 362880, tl.float32)
    series = series * near - 1 / 40320
    series = series * near + 1 / 5040
    series = series * near - 1 / 720
    series = series * near + 1 / 120
    series = series * near - 1 / 24
    series = series * near + 1 / 6
    series = series * near - 1 / 2
    series = series * near + 1
    far = tl.maximum(r, 0.5)
    return tl.where(r < 0.5, series, (1 - tl.exp(-far)) / far)


@triton.jit
def length_and_factor(squares, EXACT: tl.constexpr):
    """r and f(r) from r^2; without EXACT to 1e-5 of themselves, which is far below what TF32 and half precision keep.

    Every thread that holds a piece of a capsule computes this, so it is as dear as the products: two special functions
    and a handful of additions, against thirty instructions in `squash_factor`.
    """
    if EXACT:
        r = tl.sqrt(squares)
        f = squash_factor(r)
    else:
        reciprocal = tl.rsqrt(tl.maximum(squares, 1e-36))
        r = squares * reciprocal
        f = tl.where(r < 0.02, 1 - r * (0.5 - r * (1 / 6)), reciprocal - tl.exp(-r) * reciprocal)
    return r, f


@triton.jit
def gradient_factors(r, EXACT: tl.constexpr):
    """f(r), f'(r) / (r f(r)^2) and 1 / (r f(r)); for r > 0. Without EXACT as accurate as `length_and_factor`.

    With e = exp(-r) and l = 1 - e = r f, the second is (e - f) / l^2.
    """
    if EXACT:
        f = squash_factor(r)
        along = squash_slope(r, f) / f / f / r
        outward = 1 / f / r
    else:
        # The difference e - f loses more digits than 1 - e, so the series goes further than in `length_and_factor`.
        near = r < 0.25
        e = tl.exp(-r)
        series = 1 - r * (1 / 2 - r * (1 / 6 - r * (1 / 24 - r * (1 / 120))))
        length = tl.where(near, r * series, 1 - e)
        f = tl.where(near, series, length / r)
        outward = 1 / length
        gap = r * (r * (1 / 3 - r * (1 / 8 - r * (1 / 30 - r * (1 / 144)))) - 1 / 2)
        along = tl.where(near, gap, e - f) * outward * outward
    return f, along, outward


@triton.jit
def squash_slope(r, f):
    """f'(r) = (exp(-r) - f(r)) / r, by its series near zero."""
    near = tl.minimum(r, 0.5)
    series = tl.full(r.shape, -8 / 362880, tl.float32)
    series = series * near + 7 / 40320
    series = series * near - 6 / 5040
    series = series * near + 5 / 720
    series = series * near - 4 / 120
    series = series * near + 3 / 24
    series = series * near - 2 / 6
    series = 1 / 2 + series * near
    far = tl.maximum(r, 0.5)
    return tl.where(r < 0.5, -series, (tl.exp(-far) - f) / far)


@triton.jit
def sum_capsules(tile, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORM_ROWS: tl.constexpr, NORM_COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS] -> [ROWS / NORM_ROWS, COLUMNS / NORM_COLUMNS], the sum over each capsule."""
    across: tl.constexpr = COLUMNS // NORM_COLUMNS
    by_row = tl.sum(tl.reshape(tile, (ROWS, across, NORM_COLUMNS)), axis=2)
    return tl.sum(tl.reshape(by_row, (ROWS // NORM_ROWS, NORM_ROWS, across)), axis=1)


@triton.jit
def spread_capsules(
    each, ROWS: tl.constexpr, COLUMNS: tl.constexpr, NORM_ROWS: tl.constexpr, NORM_COLUMNS: tl.constexpr
):
    """The inverse shape change: every number of a capsule gets the capsule's value."""
    down: tl.constexpr = ROWS // NORM_ROWS
    across: tl.constexpr = COLUMNS // NORM_COLUMNS
    by_row = tl.reshape(tl.broadcast_to(each[:, None, :], (down, NORM_ROWS, across)), (ROWS, across))
    return tl.reshape(tl.broadcast_to(by_row[:, :, None], (ROWS, across, NORM_COLUMNS)), (ROWS, COLUMNS))


@triton.jit
def tile_rows(first_pixel, first_image, COUNT: tl.constexpr, IMAGES: tl.constexpr, GROUPS: tl.constexpr):
    """Rows of a tile are (pixel, image, part): the pixel, image and part of each of COUNT rows.

    With a single pixel in the tile it stays a scalar, and so does all arithmetic on its position.
    """
    row = tl.arange(0, COUNT)
    pixel = first_pixel
    if COUNT > IMAGES * GROUPS:
        pixel = first_pixel + row // (IMAGES * GROUPS)
    return pixel, first_image + row // GROUPS % IMAGES, row % GROUPS


@triton.jit
def tile_columns(first_capsule, COLUMNS: tl.constexpr, SPAN: tl.constexpr, WIDTH_PAD: tl.constexpr):
    """Columns of a tile are (pixel, capsule, number): the three of each, the pixel counted within the span.

    Said outright that numbers of a capsule share the first two: the compiler does not see it through a remainder, and
    would then load and store number by number.
    """
    column = tl.arange(0, COLUMNS)
    s = tl.max_constancy(column // (COLUMNS // SPAN), WIDTH_PAD)
    capsule = tl.max_constancy(first_capsule + column % (COLUMNS // SPAN) // WIDTH_PAD, WIDTH_PAD)
    return s, capsule, column % WIDTH_PAD


@triton.jit
def length_positions(
    pixel,
    pixel_real,
    part,
    first_capsule,
    CAPSULES: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    LENGTH_ROWS: tl.constexpr,
    LENGTH_COLUMNS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORM_COLUMNS: tl.constexpr,
    room,
    SPAN: tl.constexpr,
    APART: tl.constexpr,
):
    """Offsets and mask of a tile's lengths within [pixels, LENGTH_ROWS, CAPSULES, LENGTH_COLUMNS].

    Capsules are WIDTH_PAD columns wide in the tile; `pixel` is counted over all images, [rows]. Side by side in the
    columns stand SPAN pixels, which lie APART in the map; `room` is how far its row goes on from the first, [rows].
    """
    groups: tl.constexpr = WIDTH_PAD // NORM_COLUMNS
    of_pixel: tl.constexpr = COLUMNS // NORM_COLUMNS // SPAN
    across = tl.arange(0, COLUMNS // NORM_COLUMNS)
    capsule = first_capsule + across % of_pixel // groups
    piece = across % groups
    row = (pixel.to(tl.int64) * LENGTH_ROWS + part) * (CAPSULES * LENGTH_COLUMNS)
    offsets = row[:, None] + (capsule * LENGTH_COLUMNS + piece)[None, :]
    real = (capsule < CAPSULES) & (piece < LENGTH_COLUMNS)
    mask = (pixel_real & (part < LENGTH_ROWS))[:, None] & real[None, :]
    if SPAN > 1:
        further = across // of_pixel * APART
        offsets += (further * (LENGTH_ROWS * CAPSULES * LENGTH_COLUMNS))[None, :]
        mask = mask & (further[None, :] < room[:, None])
    return offsets, mask


@triton.jit
def activation_gradient(
    y,
    grad_y,
    r,
    grad_r,
    slope,
    HAS_GRAD_Y: tl.constexpr,
    HAS_GRAD_R: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    NORM_ROWS: tl.constexpr,
    NORM_COLUMNS: tl.constexpr,
    EXACT: tl.constexpr,
):
    """The gradient before leaky ReLU and squash of a tile, all float32; ops/README.md has the mathematics.

    da = f dy + (f'/r)(a . dy) a + dr a/r with a = y/f. The parts along y vanish with r; they are dropped where r is
    too small to divide by. The divisions are ordered so that nothing underflows at large r, where f is about 1/r.
    """
    known = r > 3e-10
    f, slope_along, outward = gradient_factors(tl.where(known, r, 3e-10), EXACT)
    along = tl.zeros_like(r)
    if HAS_GRAD_Y:
        along += slope_along * sum_capsules(y * grad_y, ROWS, COLUMNS, NORM_ROWS, NORM_COLUMNS)
    if HAS_GRAD_R:
        along += grad_r * outward
    along = tl.where(known, along, 0.0)
    grad_a = y * spread_capsules(along, ROWS, COLUMNS, NORM_ROWS, NORM_COLUMNS)
    if HAS_GRAD_Y:
        grad_a += grad_y * spread_capsules(f, ROWS, COLUMNS, NORM_ROWS, NORM_COLUMNS)
    return tl.where(y > 0, grad_a, grad_a * slope)


@triton.jit
def quotient(k, BY: tl.constexpr, LENGTH: tl.constexpr, RUN: tl.constexpr):
    """k // BY for 0 <= k < LENGTH, which is the same for RUN neighbours; a RUN of 1 for scalars.

    A product with the reciprocal where BY is no power of two. Where LLVM knows how small k is, it divides by
    multiplications of 16 bits, and of those ptxas 12.8, which comes with Triton 3.6, makes wrong code: for some k the
    position of another number. By ptxas 13.4 the same kernels are right.
    """
    # A shift; or more than 16 bits, and soon (from 2^22 on) more than a float can tell apart.
    plain: tl.constexpr = BY & (BY - 1) == 0 or LENGTH > 1048576
    if plain:
        whole = k // BY
    else:
        whole = ((tl.cast(k, tl.float32) + 0.5) * (1.0 / BY)).to(tl.int32)
        if RUN > 1:
            whole = tl.max_constancy(whole, RUN)
    return whole


@triton.jit
def divided(k, BY: tl.constexpr, LENGTH: tl.constexpr, RUN: tl.constexpr):
    """k // BY and k % BY, as `quotient` has it."""
    whole = quotient(k, BY, LENGTH, RUN)
    return whole, remainder(k, whole, BY)


@triton.jit
def remainder(k, whole, BY: tl.constexpr):
    """k % BY, where `whole` is k // BY."""
    return k % BY if BY & (BY - 1) == 0 else k - whole * BY
