"""What the float and the 8-bit C files have in common."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import torch

from purecaps._version import __version__
from purecaps.data.transforms import parse
from purecaps.errors import ConfigError
from purecaps.files import atomic_write
from purecaps.models.sizes import LayerSizes
from purecaps.models.store import ModelInfo

# Headers that the files include: one of the same name beside them could be taken for it.
INCLUDED = ("math", "stddef", "stdint")


@dataclass(frozen=True)
class CReport:
    """What an exported network needs.

    Args:
        source: the C file.
        header: its header.
        constant_bytes: weights and tables in flash, beside the code.
        ram_bytes: static memory.
        multiply_adds: of one image.
    """

    source: Path
    header: Path
    constant_bytes: int
    ram_bytes: int
    multiply_adds: int


def common_values(info: ModelInfo, given: str | None, suffix: str = "") -> dict[str, Any]:
    """What both templates are filled with: names, shapes and where the crop begins.

    Args:
        info: the network's description.
        given: what files and symbols are to be called; None for the network's name with the suffix.
        suffix: what tells this kind of file from others of the network.
    """
    if given is not None:
        check_name(given)
    name = re.sub(r"\W", "_", info.name) + suffix if given is None else given
    channels, height, width = info.image_shape
    top, left = crop_offset(info.image_shape, info.in_shape, info.augment)
    return {
        "name": name,
        "NAME": name.upper(),
        "version": __version__,
        "about": comment_text(f"{info.name}, trained on {Path(info.trained_on).name}"),
        "channels": channels,
        "height": height,
        "width": width,
        "classes": info.num_classes,
        "class_names": ",\n".join(f'    "{c_text(each)}"' for each in info.class_names),
        "in_height": info.in_shape[1],
        "in_width": info.in_shape[2],
        "crop_top": top,
        "crop_left": left,
    }


def check_name(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or name.lower() in INCLUDED:
        raise ConfigError(
            f"name: expected letters, digits and underscores, no digit first, and none of {', '.join(INCLUDED)}, "
            f"got {name!r}"
        )


def write_pair(folder: str | Path, header: str, source: str, values: Mapping[str, Any]) -> tuple[Path, Path]:
    """Fills in both templates and writes NAME.h and NAME.c into `folder`; returns (source, header)."""
    paths = {suffix: Path(folder) / f"{values['name']}{suffix}" for suffix in (".h", ".c")}
    for suffix, template in ((".h", header), (".c", source)):
        with atomic_write(paths[suffix]) as temporary:
            temporary.write_text(Template(template).substitute(values), encoding="ascii")
    return paths[".c"], paths[".h"]


def crop_offset(
    image_shape: tuple[int, int, int], in_shape: tuple[int, int, int], augment: tuple[str, ...]
) -> tuple[int, int]:
    """Where the network's input begins in the raw image: found by cropping a map of its own coordinates."""
    _, height, width = image_shape
    grid = torch.arange(height * width, dtype=torch.float32).view(1, 1, height, width)
    transforms = parse(augment)
    if not transforms.crops_only_at_test:
        raise ConfigError(
            f"model: expected one that takes images as they are, got one trained with {transforms}; export it to ONNX"
        )
    corner = transforms.at_test(grid)
    if tuple(corner.shape[2:]) != in_shape[1:]:
        raise ConfigError(f"model: expected images of {in_shape[1:]} after cropping, got {tuple(corner.shape[2:])}")
    row, column = divmod(int(corner[0, 0, 0, 0]), width)
    if float(corner[0, 0, -1, -1]) != (row + in_shape[1] - 1) * width + column + in_shape[2] - 1:
        raise ConfigError("model: expected a crop from inside the image, got one with padding")
    return row, column


def sizes_fields(layer: LayerSizes) -> str:
    """A layer's sizes in the order of the C struct."""
    numbers = (
        *layer.in_size, layer.C, *layer.out_size, layer.O, *layer.kernel, *layer.stride, *layer.padding,
        layer.g, layer.m, layer.n, layer.p, layer.chunk,
    )  # fmt: skip
    if max(numbers) > 0xFFFF:
        raise ConfigError(f"model: expected sizes up to 65,535, got {max(numbers):,} in a layer; export it to ONNX")
    return ", ".join(f"{number}U" for number in numbers)


def array(kind: str, name: str, values: Iterable[str], per_line: int) -> str:
    """A constant array in C."""
    items = list(values)
    lines = [", ".join(items[start : start + per_line]) for start in range(0, len(items), per_line)]
    body = ",\n    ".join(lines)
    return f"static const {kind} {name}[{len(items)}] = {{\n    {body}\n}};"


def comment_text(text: str) -> str:
    """What may stand in a C comment: ASCII on one line that neither ends it nor begins another."""
    plain = text.encode("ascii", "backslashreplace").decode()
    return plain.replace("\n", " ").replace("*/", "* /").replace("/*", "/ *")


def c_text(text: str) -> str:
    """A C string's content: ASCII, quotes and backslashes escaped, everything else as octal bytes."""
    plain = []
    for byte in text.encode("utf-8", "replace"):
        character = chr(byte)
        plain.append(character if 32 <= byte < 127 and character not in '"\\?' else f"\\{byte:03o}")
    return "".join(plain)
