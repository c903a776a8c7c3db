"""How a small network lies in the memory of the kernel that computes all of it: weights, maps, and the code's sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.ops.cuda.nvrtc import source_text
from purecaps.ops.geometry import Geometry, Pair

KERNEL = (3, 3)
ROWS = 4  # m, of every capsule
SLOT = 16  # bytes: two rows of four numbers
UNITS = 4  # of a step of k, one for each of four threads
COLUMNS = (4, 8)  # n and p, padded
TILE = 8  # columns of a product
MOST_TILES = {"hidden": 8, "last": 16}  # whose sums a thread's registers hold
MOST_WARPS = 16
MAPS = "// MAPS"  # where network.cu wants them


@dataclass(frozen=True)
class Stage:
    """One layer of a network: its kernel [3, 3, C, O, g, n, p] and how it is applied."""

    weight: Tensor
    geometry: Geometry
    slope: float
    chunk: int | None


@dataclass(frozen=True)
class Map:
    """A map between two layers, as network.cu has it.

    Args:
        capsules: at each position.
        columns: numbers in a row of a capsule, padded.
        height: of the map.
        width: of the map.
        stride: of the layer that reads it.
    """

    capsules: int
    columns: int
    height: int
    width: int
    stride: int

    @property
    def bytes(self) -> int:
        return self._quad * self.capsules * self.columns // 4

    @property
    def _across(self) -> int:
        return (self.width + 1) // 2 if self.stride == 2 else self.width

    @property
    def _even(self) -> int:
        return _apart(self.height * self._across * SLOT) if self.stride == 2 else 0

    @property
    def _quad(self) -> int:
        plane = self._even + self.height * self._across * SLOT
        return 2 * (_apart(plane) if self.columns == 4 else plane + (96 - plane % 64) % 64)

    def offset(self, unit: int) -> int:
        """Bytes from the corner of a window to one of its units, (capsule, four of its columns, kernel position)."""
        part, position = divmod(unit, KERNEL[0] * KERNEL[1])
        y, x = divmod(position, KERNEL[1])
        if self.stride == 2:
            within = x % 2 * self._even + (y * self._across + x // 2) * SLOT
        else:
            within = (y * self.width + x) * SLOT
        return part * self._quad + within

    @property
    def code(self) -> str:
        sizes = (self.capsules, self.columns, self.height, self.width, self.stride, self.bytes)
        return f"Map<{', '.join(map(str, sizes))}>"


@dataclass(frozen=True)
class Layout:
    """A network as the kernel takes it.

    Args:
        weights: int32, the words of all layers, two numbers each, in the order in which threads hold them.
        bias: float32, what the sums of the first layer begin with, for what is subtracted from pixels.
        maps: that the layers but the last write.
        image: (height, width).
        stride: of the first layer.
        classes: capsules of the last layer.
        last_columns: numbers in a row of these, padded.
        offsets: where each layer's words begin.
        slope: leaky ReLU's.
        dtype: float16 or bfloat16.
    """

    weights: Tensor
    bias: Tensor
    maps: tuple[Map, ...]
    image: Pair
    stride: int
    classes: int
    last_columns: int
    offsets: tuple[int, ...]
    slope: float
    dtype: torch.dtype

    @property
    def regions(self) -> Pair:
        """Bytes of the two that maps are written to by turns; the second is the image's at first."""
        sizes = [each.bytes for each in self.maps]
        pixels = -(-2 * self.image[0] * self.image[1] // 16) * 16
        return max(sizes[::2]), max([pixels, *sizes[1::2]])

    @property
    def warp_bytes(self) -> int:
        return sum(self.regions)

    @property
    def weight_bytes(self) -> int:
        """Of the weights in shared memory: of all layers but the last."""
        return 4 * self.offsets[-1]

    def warps(self, shared: int) -> int:
        """How many fit a block that may have so many bytes of shared memory; 0 where none does."""
        return max(0, min(MOST_WARPS, (shared - self.weight_bytes) // self.warp_bytes))

    def shared_bytes(self, warps: int) -> int:
        return self.weight_bytes + warps * self.warp_bytes

    def source(self, warps: int, *, bytes_in: bool, classes_out: bool) -> str:
        """The program.

        Args:
            warps: in a block.
            bytes_in: images are uint8, not float32.
            classes_out: the class of the longest capsule is written, not all lengths.
        """
        even, odd = self.regions
        known = {
            "WARPS": warps,
            "IMAGE_H": self.image[0],
            "IMAGE_W": self.image[1],
            "STRIDE": self.stride,
            "CLASSES": self.classes,
            "OUTPUTS": 1 if classes_out else self.classes,
            "LAST_P": self.last_columns,
            "LAST_WEIGHTS": self.offsets[-1],
            "LAST_EVEN": len(self.maps) % 2,
            "EVEN_BYTES": even,
            "ODD_BYTES": odd,
            "WARP_BYTES": self.warp_bytes,
            "PIXEL": "unsigned char" if bytes_in else "float",
            "OUTPUT": "long long" if classes_out else "float",
        }
        flags = [("BYTES_IN", bytes_in), ("CLASS_OUT", classes_out), ("BFLOAT16", self.dtype == torch.bfloat16)]
        lines = [f"#define {name} {value}" for name, value in known.items()]
        lines += [f"#define {name}" for name, yes in flags if yes]
        text = source_text("primitives.cu", "halves.cu", "network.cu").replace(MAPS, self._maps_code())
        return "\n".join([*lines, text, self._layers_code()])

    def _maps_code(self) -> str:
        lines = [f"typedef {each.code} Map{number};" for number, each in enumerate(self.maps, start=1)]
        return "\n".join([*lines, f"typedef Map{len(self.maps)} Last;"])

    def _layers_code(self) -> str:
        lines = []
        for number, offset in enumerate(self.offsets[:-1], start=1):
            kind = "first_layer<Map1>" if number == 1 else f"hidden_layer<Map{number - 1}, Map{number}>"
            places = "odd, even" if number % 2 else "even, odd"
            begin = "bias, " if number == 1 else ""
            lines += [f"{kind}({places}, weights + {offset}, {begin}lane, slope);", "wait_for_warp();"]
        body = "\n".join(f"    {line}" for line in lines)
        return (
            "DEVICE void all_but_last(char* even, char* odd, const u32* weights, const float* bias, int lane,\n"
            f"                         float slope) {{\n{body}\n}}\n"
        )


def refuses(stages: Sequence[Stage], in_shape: tuple[int, int, int]) -> str | None:
    """Why one kernel cannot hold a network; None where it can.

    Args:
        stages: the layers, first to last.
        in_shape: the images' (channels, height, width).
    """
    if len(stages) < 2:
        return "one layer, only networks of two and more are covered"
    if in_shape[0] != 1:
        return f"images of {in_shape[0]} channels, only one is covered"
    for number, stage in enumerate(stages, start=1):
        reason = _layer_refuses(stage) or _columns_refuse(stage, number == 1, number == len(stages))
        if reason is not None:
            return f"layer {number} has {reason}"
    slopes = {stage.slope for stage in stages}
    if len(slopes) > 1 or not 0 <= stages[0].slope <= 1:
        return f"slopes {', '.join(str(stage.slope) for stage in stages)}, only one in [0, 1] for all layers is covered"
    first, n = stages[0].weight.shape, stages[1].weight.shape[5]
    if first[3] != 1:
        return f"a first layer of {first[3]} capsules, only one is covered"
    if first[6] != ROWS * n:
        return f"capsules of {first[6]} numbers in rows of {n}, only {ROWS} rows are covered"
    for number, (before, stage) in enumerate(pairwise(stages[1:]), start=3):
        if before.weight.shape[6] != stage.weight.shape[5]:
            return (
                f"layer {number} reads rows of {stage.weight.shape[5]} out of capsules with rows of "
                f"{before.weight.shape[6]}, only equal ones are covered"
            )
    for number, stage in enumerate(stages[1:-1], start=2):
        if stage.geometry.stride not in ((1, 1), (2, 2)):
            return f"layer {number} has stride {stage.geometry.stride}, only 1 and 2 are covered"
    if stages[0].geometry.stride[0] != stages[0].geometry.stride[1]:
        return f"layer 1 has stride {stages[0].geometry.stride}, only the same for both axes is covered"
    size = _sizes(stages, in_shape)[-1]
    if size != KERNEL:
        return f"a last layer that reads a map of {size[0]}x{size[1]}, only {KERNEL[0]}x{KERNEL[1]} is covered"
    return None


def make_layout(
    stages: Sequence[Stage], in_shape: tuple[int, int, int], mean: float, std: float, dtype: torch.dtype
) -> Layout:
    """A network that `refuses` lets pass.

    Args:
        stages: the layers, first to last.
        in_shape: the images' (channels, height, width).
        mean: what is subtracted from pixels in [0, 1].
        std: what they are divided by then.
        dtype: of weights and maps, float16 or bfloat16.
    """
    sizes = _sizes(stages, in_shape)
    maps = []
    for stage, following, size in zip(stages, stages[1:], sizes[1:], strict=False):
        stride = 1 if following is stages[-1] else following.geometry.stride[0]  # the last one's has but one window
        capsules = stage.weight.shape[3]
        maps.append(Map(capsules, _padded(following.weight.shape[5]), size[0], size[1], stride))
    pieces = [_first_words(stages[0].weight, maps[0].columns, std, dtype)]
    pieces += [_words(stage.weight, read, dtype) for stage, read in zip(stages[1:], maps, strict=True)]
    offsets = [0]
    for piece in pieces[:-1]:
        offsets.append(offsets[-1] + piece.numel())
    device = stages[0].weight.device
    return Layout(
        weights=torch.cat(pieces).to(device),
        bias=_bias(stages[0].weight, maps[0].columns, mean, std).to(device),
        maps=tuple(maps),
        image=in_shape[1:],
        stride=stages[0].geometry.stride[0],
        classes=stages[-1].weight.shape[3],
        last_columns=_padded(stages[-1].weight.shape[6]),
        offsets=tuple(offsets),
        slope=stages[0].slope,
        dtype=dtype,
    )


def _layer_refuses(stage: Stage) -> str | None:
    kh, kw, _, _, g, _, _ = stage.weight.shape
    if g != 1:
        return f"g = {g}, only g = 1 is covered"
    if (kh, kw) != KERNEL:
        return f"a kernel of {kh}x{kw}, only {KERNEL[0]}x{KERNEL[1]} is covered"
    if stage.geometry.padding != (0, 0):
        return f"padding {stage.geometry.padding}, only no padding is covered"
    if stage.geometry.dilation != (1, 1):
        return f"dilation {stage.geometry.dilation}, only no dilation is covered"
    if stage.chunk is not None:
        return f"squash_chunk = {stage.chunk}, only whole capsules are covered"
    return None


def _columns_refuse(stage: Stage, is_first: bool, is_last: bool) -> str | None:
    _, _, _, O, _, n, p = stage.weight.shape
    if is_first:  # its numbers are cut into rows by the second
        most = ROWS * COLUMNS[-1]
        return None if p <= most else f"capsules of {p} numbers, only up to {most} are covered"
    if max(n, p) > COLUMNS[-1]:
        return f"capsules of {n} to {p} columns, only up to {COLUMNS[-1]} are covered"
    most = MOST_TILES["last" if is_last else "hidden"] * TILE
    if O * _padded(p) > most:
        return f"{O} capsules of {_padded(p)} columns, padded, only {most} columns in all are covered"
    return None


def _sizes(stages: Sequence[Stage], in_shape: tuple[int, int, int]) -> list[Pair]:
    """Of the map that each layer reads."""
    sizes = [(in_shape[1], in_shape[2])]
    for stage in stages[:-1]:
        sizes.append(stage.geometry.out_size(sizes[-1], KERNEL))
    return sizes


def _padded(columns: int) -> int:
    return next(each for each in COLUMNS if columns <= each)


def _apart(size: int) -> int:
    """As network.cu lets parts begin in different banks."""
    return size + (192 - size % 128) % 128


def _number_of(tile: Tensor, column: Tensor, columns: int) -> tuple[Tensor, Tensor]:
    """(m, n) of the numbers that the first layer's tiles have as their columns."""
    if columns == 4:  # a thread's two tiles are two numbers of two rows
        return 2 * (column // 4) + tile, column % 4
    return tile, column


def _first_kernel(weight: Tensor, columns: int) -> Tensor:
    """[3, 3, 4, columns]: row and column of the window, m and n."""
    kernel = weight.detach().double().cpu()[:, :, 0, 0, 0, 0]
    kernel = kernel.unflatten(-1, (ROWS, kernel.shape[-1] // ROWS))
    return F.pad(kernel, (0, columns - kernel.shape[-1]))


def _first_words(weight: Tensor, columns: int, std: float, dtype: torch.dtype) -> Tensor:
    """Words [tile, half, lane] of the first layer: a pixel is its byte / 256, of which half precision loses nothing."""
    kernel = F.pad(_first_kernel(weight, columns), (0, 0, 0, 0, 0, 1, 0, 1)) * (256 / 255 / std)  # [4, 4, m, n]
    tile, half, lane, e = torch.meshgrid(*map(torch.arange, (columns // 2, 2, 32, 2)), indexing="ij")
    m, n = _number_of(tile, lane // 4, columns)
    return _as_words(kernel[lane % 4, 2 * half + e, m, n], dtype)


def _bias(weight: Tensor, columns: int, mean: float, std: float) -> Tensor:
    tile, column = torch.meshgrid(torch.arange(columns // 2), torch.arange(TILE), indexing="ij")
    m, n = _number_of(tile, column, columns)
    return (_first_kernel(weight, columns).sum(dim=(0, 1))[m, n] * (-mean / std)).float().flatten()


def _words(weight: Tensor, read: Map, dtype: torch.dtype) -> Tensor:
    """Words [step, tile, half, lane] of another layer, then where in `read` the units [step, thread] lie."""
    kh, kw, C, O, _, n, p = weight.shape
    N, P = _padded(n), _padded(p)
    units, per_tile = C * (N // 4) * kh * kw, TILE // P
    steps, tiles = -(-units // UNITS), -(-O // per_tile)
    kernel = weight.detach().double().cpu()[:, :, :, :, 0].permute(2, 4, 0, 1, 3, 5)  # [C, n, kh, kw, O, p]
    kernel = F.pad(kernel, (0, P - p, 0, tiles * per_tile - O, 0, 0, 0, 0, 0, N - n))
    kernel = kernel.flatten(4).unflatten(1, (N // 4, 4)).permute(0, 1, 3, 4, 2, 5).flatten(0, 3)  # [unit, 4, (o, p)]
    kernel = F.pad(kernel, (0, 0, 0, 0, 0, steps * UNITS - units))
    step, tile, half, lane, e = torch.meshgrid(*map(torch.arange, (steps, tiles, 2, 32, 2)), indexing="ij")
    words = _as_words(kernel[UNITS * step + lane % 4, 2 * half + e, TILE * tile + lane // 4], dtype)
    # Weights of units beyond are zeros, and what they are multiplied with must be a number.
    places = [read.offset(min(unit, units - 1)) for unit in range(steps * UNITS)]
    return torch.cat([words, torch.tensor(places, dtype=torch.int32)])


def _as_words(numbers: Tensor, dtype: torch.dtype) -> Tensor:
    """Pairs along the last axis as one int32 each, the first in the lower half."""
    return numbers.to(dtype).contiguous().view(torch.int32).flatten()
