"""The containers data sets are published in, decoded to plain uint8 arrays. None of them is a pickle."""

from __future__ import annotations

import gzip
import hashlib
import json
import math
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Arrays = dict[str, NDArray[np.uint8]]
"""Under the keys of CONTENT: images [N, C, H, W] and labels [N], both uint8."""

CONTENT = ("train_images", "train_labels", "test_images", "test_labels")

Decoder = Callable[[Path], Arrays]
"""From the folder that holds a source's files to the arrays in them."""

IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR_BINARY_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_PNG_FILES = (
    *(f"data_batch_{i}.png" for i in range(1, 6)),
    "test_batch.png",
    "train_lables.json",  # spelt so in the package
    "test_lables.json",
)


def digest(array: NDArray[np.uint8]) -> str:
    """The sha256 of an array's bytes in row-major order: the same whatever container they came in."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()


def decode_idx(folder: Path) -> Arrays:
    """The MNIST family's four IDX files, each plain or with gzip's `.gz`."""
    return {key: _read_idx(folder / name) for key, name in zip(CONTENT, IDX_FILES, strict=True)}


def decode_cifar_binary(folder: Path) -> Arrays:
    """CIFAR-10's binary version: records of a label and 32 x 32 red, green and blue bytes."""
    parts = [
        np.frombuffer((folder / name).read_bytes(), np.uint8).reshape(-1, 1 + 3 * 32 * 32)
        for name in CIFAR_BINARY_FILES
    ]
    train, test = np.concatenate(parts[:-1]), parts[-1]
    return {
        "train_images": train[:, 1:].reshape(-1, 3, 32, 32),
        "train_labels": train[:, 0],
        "test_images": test[:, 1:].reshape(-1, 3, 32, 32),
        "test_labels": test[:, 0],
    }


def decode_cifar_png(folder: Path) -> Arrays:
    """CIFAR-10 as RGB pictures whose every row is one 32 x 32 image, with JSON lists of labels."""

    def images(name: str) -> NDArray[np.uint8]:
        with Image.open(folder / name) as picture:
            rows = np.asarray(picture, dtype=np.uint8)
        return rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)

    def labels(name: str) -> NDArray[np.uint8]:
        return np.array(json.loads((folder / name).read_text()), dtype=np.uint8)

    *train, test, train_labels, test_labels = CIFAR_PNG_FILES
    return {
        "train_images": np.concatenate([images(name) for name in train]),
        "train_labels": labels(train_labels),
        "test_images": images(test),
        "test_labels": labels(test_labels),
    }


def _read_idx(path: Path) -> NDArray[np.uint8]:
    data = path.read_bytes() if path.exists() else gzip.decompress(Path(f"{path}.gz").read_bytes())
    if data[:3] != b"\x00\x00\x08":
        raise ValueError(f"{path.name}: expected an IDX file of bytes, got one that begins {data[:4].hex()}")
    rank = data[3]
    shape = struct.unpack_from(f">{rank}I", data, 4)
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * rank)
    if values.size != math.prod(shape):
        raise ValueError(f"{path.name}: expected {math.prod(shape)} values, got {values.size}")
    values = values.reshape(shape)
    return values[:, None] if rank == 3 else values
