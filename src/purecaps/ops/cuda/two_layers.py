"""The gradients of a network's first two layers as one kernel: compiled for a device, launched on a batch.

Between the second layer's gradients and the first layer's lie 100 MB of reads from the cache and two launches, which
this kernel saves: every map is read once, into shared memory. See two_layers_backward.cu.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from purecaps.ops.cuda.device import make_kernel
from purecaps.ops.cuda.nvrtc import CudaError, Kernel, source_text
from purecaps.ops.geometry import Pair
from purecaps.ops.triton.problem import Problem

log = logging.getLogger("purecaps.ops")

NAME = "two_layers_backward"
KERNEL, ROWS, COLUMNS = (3, 3), 4, (4, 8)  # what is covered: of kernels, and of the second layer's input capsules
OUT_COLUMNS = (8, 16, 32, 64)  # numbers of all output capsules' rows, (o, p)
WIDTH = 8  # a row of a capsule in shared memory
MOST_WARPS = 16
# Blocks of a multiprocessor where there are images for as many: one waits for its maps while others multiply.
MOST_AT_ONCE, REGISTERS, LEAST_REGISTERS = 3, 65536, 80
RESERVED = 1024  # bytes of shared memory that the device keeps of each block's
FLAGS = {
    torch.float32: [],
    torch.float16: ["#define HALVES"],
    torch.bfloat16: ["#define HALVES", "#define BFLOAT16"],
}


@dataclass(frozen=True)
class Image:
    """What the first layer reads: an image whose numbers lie without gaps.

    Args:
        numbers: how many it has.
        deep: how many a pixel has.
        strides: how far apart rows, columns and a pixel's numbers lie.
        stride: the first layer's.
    """

    numbers: int
    deep: int
    strides: tuple[int, int, int]
    stride: int


@dataclass(frozen=True)
class TwoLayers:
    """What the kernel does for a network.

    Args:
        second: the second layer's sizes.
        first: what the first layer reads, for its weight gradient too; without it the second layer's input gradient is
            given.
        dtype: of maps, images and the second layer's kernel.
        at_once: blocks of a multiprocessor.
    """

    second: Problem
    first: Image | None
    dtype: torch.dtype
    at_once: int = 1

    def side_by_side(self, shared: int, multiprocessors: int) -> TwoLayers:
        """The same with as many blocks of a multiprocessor as fit in `shared` bytes and have images."""
        images = self.second.Z * self.second.B
        for count in range(min(MOST_AT_ONCE, images // multiprocessors), 1, -1):
            more = replace(self, at_once=count)
            fits = count * (more.shared_bytes + RESERVED) <= shared + RESERVED
            if fits and count * 32 * more.warps * LEAST_REGISTERS <= REGISTERS:
                return more
        return self

    @property
    def warps(self) -> int:
        """An even number; as few rows of pixels wait for a warp as sixteen leave waiting, or eight of many blocks."""
        most = MOST_WARPS if self.at_once == 1 else MOST_WARPS // 2
        turns = -(-self.second.H // most)
        return max(4, 2 * -(-self.second.H // turns // 2))

    @property
    def shared_bytes(self) -> int:
        """As two_layers_backward.cu counts them."""
        second, first = self.second, self.first
        out_h, out_w = second.out
        columns = second.O * second.p
        pitch, rows = columns if columns % 16 == 8 else columns + 8, 9 * WIDTH
        u, beyond = second.H * second.W * ROWS * WIDTH, (-out_w % 4) * ROWS * pitch
        extra = sums = 0
        if first is not None:
            extra = second.H * second.W * (ROWS * WIDTH + 8) + first.numbers
            sums = self.warps * -(-9 * first.deep // 16) * 16 * (ROWS * WIDTH + 8)
        maps = out_h * out_w * ROWS * pitch + max(beyond, u + extra)
        splits = self.warps // (2 if columns >= 32 else 1)
        return 4 * (rows * pitch + max(maps, splits * rows * pitch + sums))

    def source(self) -> str:
        """The program."""
        second, first = self.second, self.first
        known = {
            "WARPS": self.warps,
            "BLOCKS_AT_ONCE": self.at_once,
            "H": second.H,
            "W": second.W,
            "REAL_WIDTH": second.n,
            "OUT_WIDTH": second.O * second.p,
        }
        if first is not None:
            known |= {
                "IMAGE_N": first.deep,
                "IMAGE_FLOATS": first.numbers,
                "IMAGE_STRIDE": first.stride,
                "IMAGE_DOWN": first.strides[0],
                "IMAGE_ACROSS": first.strides[1],
                "IMAGE_DEEP": first.strides[2],
            }
        lines = [f"#define {name} {value}" for name, value in known.items()] + FLAGS[self.dtype]
        check = f'static_assert(4 * SHARED_FLOATS == {self.shared_bytes}, "shared memory, here and in two_layers.py");'
        return "\n".join(
            [*lines, source_text("primitives.cu", "halves.cu", "tf32.cu", "two_layers_backward.cu"), check]
        )

    def blocks(self, multiprocessors: int) -> int:
        """For each network: no more than run at once, and no more than leave all with equally many images."""
        most = max(1, self.at_once * multiprocessors // self.second.Z)
        return -(-self.second.B // -(-self.second.B // most))


def covers_second(problem: Problem, below: Pair) -> bool:
    """Whether the kernel does a second layer.

    Args:
        problem: the sizes.
        below: rows and columns of the input capsules that the squash below spans.
    """
    return (
        _plain(problem)
        and problem.geometry.stride == (1, 1)
        and (problem.C, problem.m) == (1, ROWS)
        and problem.n in COLUMNS
        and below == (ROWS, problem.n)
        and problem.O * problem.p in OUT_COLUMNS
    )


def image_of(problem: Problem, u: Tensor) -> Image | None:
    """What a first layer reads, for the kernel to do that layer as well; None where it does not.

    It does one capsule, of 16 or 32 numbers, for each window of pixels.
    """
    down, across = problem.geometry.stride
    if not _plain(problem) or down != across:
        return None
    if (problem.C, problem.m, problem.O) != (1, 1, 1) or problem.p not in (ROWS * n for n in COLUMNS):
        return None
    Z, B, _, H, W, _, n = u.shape
    numbers = n * H * W
    of_network, of_image, _, of_row, of_column, _, of_number = u.stride()
    axes = [each for each in ((H, of_row), (W, of_column), (n, of_number)) if each[0] > 1]
    expected = 1
    for size, step in sorted(axes, key=lambda axis: axis[1]):
        if step != expected:
            return None
        expected *= size
    whole = (B == 1 or of_image == numbers) and (Z == 1 or of_network == B * numbers)
    if not whole or numbers * problem.itemsize % 16:  # copied 16 bytes at a time
        return None
    return Image(numbers, n, (of_row, of_column, of_number), down)


def _plain(problem: Problem) -> bool:
    geometry = problem.geometry
    return (
        (problem.kh, problem.kw) == KERNEL
        and geometry.padding == (0, 0)
        and geometry.dilation == (1, 1)
        and problem.Z * problem.B > 0
        and min(problem.out) > 0
    )


@functools.lru_cache(maxsize=64)
def _kernel(layers: TwoLayers, device: torch.device) -> Kernel:
    return _made(layers.source(), layers.shared_bytes, 32 * layers.warps, device)


# One for all batch sizes: a program's memory on the device is never given back.
@functools.cache
def _made(source: str, shared: int, threads: int, device: torch.device) -> Kernel:
    return make_kernel(source, NAME, device, shared=shared, threads=threads)


@functools.lru_cache(maxsize=64)
def refused(layers: TwoLayers, device: torch.device) -> bool:
    """Whether the kernel cannot be made, as by a compiler older than the device; that is said once."""
    try:
        _kernel(layers, device)
    except CudaError as error:
        log.warning("the first two layers' gradients are left to a kernel each: %s", " ".join(str(error).split())[:200])
        return True
    return False


def launch(layers: TwoLayers, blocks: int, *arguments: Tensor | int | float) -> None:
    """The kernel with `blocks` for each network; the arguments are two_layers_backward.cu's."""
    device = next(each.device for each in arguments if isinstance(each, Tensor))
    _kernel(layers, device)(blocks * layers.second.Z, *arguments)
