# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""A training batch in one Triton kernel: which images, how they are transformed, and the pixels themselves.

Each output pixel goes back through the transforms, last to first, to the pixel that it came from. Random numbers are
those of data/random.py, bit for bit: shifts, crops, flips and cutouts give the very same images as data/augment.py.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from purecaps.data.batch_plan import CUTOUT, FLIP, WINDOW
from purecaps.ops.triton.device import on_its_device
from purecaps.ops.triton.parts import quotient

_STEP = tl.constexpr(0x9E3779B97F4A7C15)
_FACTOR_1 = tl.constexpr(0xBF58476D1CE4E5B9)
_FACTOR_2 = tl.constexpr(0x94D049BB133111EB)
_WINDOW = tl.constexpr(WINDOW)
_FLIP = tl.constexpr(FLIP)
_CUTOUT = tl.constexpr(CUTOUT)


@triton.jit
def mix(x):
    """splitmix64's finaliser, on uint64."""
    x = (x ^ (x >> 30)) * _FACTOR_1
    x = (x ^ (x >> 27)) * _FACTOR_2
    return x ^ (x >> 31)


@triton.jit
def uniform(key, position):
    """The number in [0, 1) at a position of a key's stream."""
    bits = mix(key + (position + 1).to(tl.uint64) * _STEP)
    return (bits >> 40).to(tl.float32) * (2.0**-24)


@triton.jit
def batch_kernel(
    images_ptr,
    labels_ptr,
    order_ptr,
    step_ptr,
    streams_ptr,
    out_ptr,
    out_labels_ptr,
    scale,
    CHAIN: tl.constexpr,
    WARP: tl.constexpr,
    COUNT: tl.constexpr,
    BATCH: tl.constexpr,
    STEPS: tl.constexpr,
    CHANNELS: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    OUT_HEIGHT: tl.constexpr,
    OUT_WIDTH: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """CHAIN and WARP are the transforms, as `encode` in batch_plan.py writes them."""
    b = tl.program_id(0)
    seed = tl.program_id(1)
    step = tl.load(step_ptr)
    stream = tl.load(streams_ptr + seed).to(tl.uint64, bitcast=True)
    stream = mix(stream ^ mix(step.to(tl.uint64, bitcast=True) + _STEP))
    chosen = tl.load(order_ptr + seed.to(tl.int64) * COUNT + step % STEPS * BATCH + b)

    pixel = tl.program_id(2) * PIXELS + tl.arange(0, PIXELS)
    y = pixel // OUT_WIDTH % OUT_HEIGHT
    x = pixel % OUT_WIDTH
    size: tl.constexpr = OUT_WIDTH * OUT_HEIGHT
    if size % PIXELS == 0 and size & (size - 1) != 0:
        # One channel a program. Of a program's number the compiler knows that it has 16 bits; see `quotient`.
        channel = quotient(tl.program_id(2), size // PIXELS, CHANNELS * size // PIXELS, 1)
    else:
        channel = pixel // size
    written = pixel < CHANNELS * OUT_HEIGHT * OUT_WIDTH
    seen = written
    for each in tl.static_range(len(CHAIN)):
        key = mix(stream ^ tl.full((), CHAIN[each][1], tl.uint64))
        if CHAIN[each][0] == _WINDOW:
            top = (uniform(key, b) * CHAIN[each][2]).to(tl.int32)
            left = (uniform(key, BATCH + b) * CHAIN[each][3]).to(tl.int32)
            y += top - CHAIN[each][4]
            x += left - CHAIN[each][4]
            seen = seen & (y >= 0) & (y < CHAIN[each][5]) & (x >= 0) & (x < CHAIN[each][6])
        elif CHAIN[each][0] == _FLIP:
            x = tl.where(uniform(key, b) < 0.5, CHAIN[each][2] - 1 - x, x)
        elif CHAIN[each][0] == _CUTOUT:
            top = (uniform(key, b) * CHAIN[each][2]).to(tl.int32) - CHAIN[each][4] // 2
            left = (uniform(key, BATCH + b) * CHAIN[each][3]).to(tl.int32) - CHAIN[each][4] // 2
            cut = (y >= top) & (y < top + CHAIN[each][4]) & (x >= left) & (x < left + CHAIN[each][4])
            seen = seen & (cut == 0)

    image = images_ptr + (chosen * CHANNELS + channel) * (HEIGHT * WIDTH)
    if len(WARP) == 0:
        value = tl.load(image + y * WIDTH + x, mask=seen, other=0).to(tl.float32)
    else:
        key = mix(stream ^ tl.full((), WARP[0], tl.uint64))
        angle = (uniform(key, b) * 2 - 1) * WARP[1]
        size = 1 + (uniform(key, BATCH + b) * 2 - 1) * WARP[2]
        shear = (uniform(key, 2 * BATCH + b) * 2 - 1) * WARP[3]
        across = (uniform(key, 3 * BATCH + b) * 2 - 1) * WARP[4]
        down = (uniform(key, 4 * BATCH + b) * 2 - 1) * WARP[4]
        cos = tl.cos(angle) / size
        sin = tl.sin(angle) / size
        centre_x: tl.constexpr = (WIDTH - 1) / 2
        centre_y: tl.constexpr = (HEIGHT - 1) / 2
        out_x = x - centre_x - across
        out_y = y - centre_y - down
        from_x = (cos - shear * sin) * out_x - (sin + shear * cos) * out_y + centre_x
        from_y = sin * out_x + cos * out_y + centre_y
        left_f = tl.floor(from_x)
        top_f = tl.floor(from_y)
        right_share = from_x - left_f
        low_share = from_y - top_f
        left = left_f.to(tl.int32)
        top = top_f.to(tl.int32)
        value = tl.zeros((PIXELS,), tl.float32)
        for corner in tl.static_range(4):
            row = top + corner // 2
            column = left + corner % 2
            inside = seen & (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
            down_share = low_share if corner // 2 == 1 else 1 - low_share
            across_share = right_share if corner % 2 == 1 else 1 - right_share
            found = tl.load(image + row * WIDTH + column, mask=inside, other=0).to(tl.float32)
            value += found * (down_share * across_share)
    at = (seed * BATCH + b).to(tl.int64)
    tl.store(out_ptr + at * (CHANNELS * OUT_HEIGHT * OUT_WIDTH) + pixel, value * scale, mask=written)
    if tl.program_id(2) == 0:
        tl.store(out_labels_ptr + at, tl.load(labels_ptr + chosen))


@on_its_device
def launch_batch(
    images: Tensor,
    labels: Tensor,
    order: Tensor,
    step: Tensor,
    streams: Tensor,
    out: Tensor,
    out_labels: Tensor,
    scale: float,
    chain: tuple[tuple[int, ...], ...],
    warp: tuple[float, ...],
    steps: int,
) -> None:
    """Writes the batch of a step.

    Args:
        images: [N, C, H, W], uint8 or float32.
        labels: int64 [N].
        order: int64 [S, N], each seed's order of images in this epoch.
        step: int64 [], on the device.
        streams: int64 [S], each seed's stream of random numbers for transforms.
        out: float32 [S, B, C, H', W'] to write.
        out_labels: int64 [S, B] to write.
        scale: what pixels are multiplied with.
        chain: all transforms but a first affine one, last first: (kind, hash of its position, its numbers).
        warp: the first transform where it is affine: (hash, radians, scale, shear, shift); else empty.
        steps: batches an epoch.
    """
    seeds, batch, channels, height, width = out.shape
    pixels = 1024 if channels * height * width > 512 else 512
    grid = (batch, seeds, triton.cdiv(channels * height * width, pixels))
    batch_kernel[grid](
        images,
        labels,
        order,
        step,
        streams,
        out,
        out_labels,
        scale,
        CHAIN=chain,
        WARP=warp,
        COUNT=order.shape[-1],
        BATCH=batch,
        STEPS=steps,
        CHANNELS=channels,
        HEIGHT=images.shape[2],
        WIDTH=images.shape[3],
        OUT_HEIGHT=height,
        OUT_WIDTH=width,
        PIXELS=pixels,
        num_warps=4,
    )
