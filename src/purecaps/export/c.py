"""A P-CapsNet as plain C99: one source file and a header, for any compiler with <math.h>.

The file holds the weights as constants, a table of layers and one loop over it. It allocates nothing: all maps lie in
one static arena, in which a layer reads from one end and writes to the other, so that its size is the largest sum of
two neighbouring maps.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from string import Template

import torch
from torch import Tensor

from purecaps._version import __version__
from purecaps.data.transforms import parse
from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.export.c_templates import HEADER, SOURCE
from purecaps.files import atomic_write
from purecaps.models.pcapsnet import PCapsNet


@dataclass(frozen=True)
class CReport:
    """What an exported network needs.

    Args:
        source: the C file.
        header: its header.
        weight_bytes: constants in flash.
        ram_bytes: static memory.
        multiply_adds: of one image.
    """

    source: Path
    header: Path
    weight_bytes: int
    ram_bytes: int
    multiply_adds: int


@dataclass(frozen=True)
class _Layer:
    """Sizes of one layer, in the shape alphabet of ops/README.md."""

    in_size: tuple[int, int]
    out_size: tuple[int, int]
    C: int
    O: int
    g: int
    m: int
    n: int
    p: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    chunk: int
    slope: float

    @property
    def in_numbers(self) -> int:
        return self.in_size[0] * self.in_size[1] * self.C * self.g * self.m * self.n

    @property
    def out_numbers(self) -> int:
        return self.out_size[0] * self.out_size[1] * self.O * self.capsule

    @property
    def capsule(self) -> int:
        return self.g * self.m * self.p


def export_c(trained: TrainedModel, folder: str | Path) -> CReport:
    """Writes NAME.c and NAME.h into `folder`.

    Args:
        trained: a P-CapsNet; networks of other families, and those that need whitened images, are refused.
        folder: where to write; it is made if it is not there.
    """
    model, info = trained.model, trained.info
    if not isinstance(model, PCapsNet):
        raise ConfigError(f"model: expected a P-CapsNet, got {info.name}; export it to ONNX instead")
    if info.preprocess == "gcn_zca":
        raise ConfigError(
            "model: expected one that takes images as they are, got one of whitened images, whose matrix is larger "
            'than most microcontrollers; train it with preprocess "standardise"'
        )
    layers = layers_of(model)
    name = re.sub(r"\W", "_", info.name)
    weights = [block.conv.weight.detach().float().cpu() for block in model.capsule_blocks()]
    channels, height, width = info.image_shape
    offset = _crop_offset(info.image_shape, info.in_shape, info.augment)
    scale, shift = _input_line(model, info.pixel_scale, channels)
    numbers = [layers[0].in_numbers, *(layer.out_numbers for layer in layers)]
    arena = max(left + right for left, right in itertools.pairwise(numbers))
    capsule = max(layer.capsule for layer in layers)
    values = {
        "name": name,
        "NAME": name.upper(),
        "version": __version__,
        "about": f"{info.name}, trained on {Path(info.trained_on).name}",
        "channels": channels,
        "height": height,
        "width": width,
        "classes": info.num_classes,
        "class_names": ",\n".join(f'    "{_c_text(each)}"' for each in info.class_names),
        "in_height": info.in_shape[1],
        "in_width": info.in_shape[2],
        "crop_top": offset[0],
        "crop_left": offset[1],
        "scale": ", ".join(_float(value) for value in scale),
        "shift": ", ".join(_float(value) for value in shift),
        "weights": "\n\n".join(_array(f"{name}_weights_{index}", w) for index, w in enumerate(weights)),
        "layers": ",\n".join(_layer_row(name, index, layer) for index, layer in enumerate(layers)),
        "layer_count": len(layers),
        "arena": arena,
        "capsule": capsule,
        "pool_max": 1 if model.head.pool == "max" else 0,
    }
    target = Path(folder)
    source, header = target / f"{name}.c", target / f"{name}.h"
    for path, template in ((header, HEADER), (source, SOURCE)):
        with atomic_write(path) as temporary:
            temporary.write_text(Template(template).substitute(values), encoding="ascii")
    return CReport(
        source=source,
        header=header,
        weight_bytes=4 * sum(w.numel() for w in weights),
        ram_bytes=4 * (arena + capsule + info.num_classes),
        multiply_adds=model.multiply_adds(),
    )


def layers_of(model: PCapsNet) -> list[_Layer]:
    """The sizes of every layer for the network's own input."""
    size, caps, numbers = (model.in_shape[1], model.in_shape[2]), 1, model.in_shape[0]
    layers = []
    for block in model.capsule_blocks():
        geometry = block.conv.geometry
        if geometry.dilation != (1, 1):
            raise ConfigError(f"model: expected layers without dilation, got {geometry.dilation}")
        g, n, p = block.conv.capsule
        out = geometry.out_size(size, block.conv.kernel_size)
        m = numbers // (g * n)
        layer = _Layer(
            in_size=size,
            out_size=out,
            C=caps,
            O=block.conv.weight.shape[3],
            g=g,
            m=m,
            n=n,
            p=p,
            kernel=block.conv.kernel_size,
            stride=geometry.stride,
            padding=geometry.padding,
            chunk=block.squash_chunk or g * m * p,
            slope=block.negative_slope,
        )
        layers.append(layer)
        size, caps, numbers = out, layer.O, layer.capsule
    return layers


def _crop_offset(
    image_shape: tuple[int, int, int], in_shape: tuple[int, int, int], augment: tuple[str, ...]
) -> tuple[int, int]:
    """Where the network's input begins in the raw image: found by cropping a map of its own coordinates."""
    _, height, width = image_shape
    grid = torch.arange(height * width, dtype=torch.float32).view(1, 1, height, width)
    corner = parse(augment).at_test(grid)
    if tuple(corner.shape[2:]) != in_shape[1:]:
        raise ConfigError(f"model: expected images of {in_shape[1:]} after cropping, got {tuple(corner.shape[2:])}")
    row, column = divmod(int(corner[0, 0, 0, 0]), width)
    if float(corner[0, 0, -1, -1]) != (row + in_shape[1] - 1) * width + column + in_shape[2] - 1:
        raise ConfigError("model: expected a crop from inside the image, got one with padding")
    return row, column


def _input_line(model: PCapsNet, pixel_scale: float, channels: int) -> tuple[list[float], list[float]]:
    """Factor and summand of each channel that turn a raw pixel into the network's input."""
    mean = [0.0] * channels if model.mean is None else model.mean.flatten().tolist()
    std = [1.0] * channels if model.std is None else model.std.flatten().tolist()
    return [pixel_scale / s for s in std], [-m / s for m, s in zip(mean, std, strict=True)]


def _layer_row(name: str, index: int, layer: _Layer) -> str:
    numbers = (
        *layer.in_size, layer.C, *layer.out_size, layer.O, *layer.kernel, *layer.stride, *layer.padding,
        layer.g, layer.m, layer.n, layer.p, layer.chunk,
    )  # fmt: skip
    fields = ", ".join(f"{number}U" for number in numbers)
    return f"    {{{fields}, {_float(layer.slope)}, {name}_weights_{index}}}"


def _array(name: str, w: Tensor) -> str:
    """A kernel [kh, kw, C, O, g, n, p] as a constant array in that order."""
    values = [_float(value) for value in w.contiguous().flatten().tolist()]
    lines = [", ".join(values[start : start + 6]) for start in range(0, len(values), 6)]
    body = ",\n    ".join(lines)
    return f"static const float {name}[{len(values)}] = {{\n    {body}\n}};"


def _float(value: float) -> str:
    """A float32 with as many digits as it takes to read the same one back."""
    text = f"{value:.9g}"
    return f"{text}F" if "." in text or "e" in text else f"{text}.0F"


def _c_text(text: str) -> str:
    """A C string's content: ASCII, quotes and backslashes escaped, everything else as octal bytes."""
    plain = []
    for byte in text.encode("utf-8", "replace"):
        character = chr(byte)
        plain.append(character if 32 <= byte < 127 and character not in '"\\?' else f"\\{byte:03o}")
    return "".join(plain)
