"""An .npz or .safetensors file of images and labels, as a data set."""

from __future__ import annotations

import logging
import os
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from purecaps.data.types import Dataset, Split
from purecaps.errors import DataError

log = logging.getLogger("purecaps.data")

_NAMES = (
    ("train_images", "train_labels", "test_images", "test_labels"),
    ("x_train", "y_train", "x_test", "y_test"),
)
_CHANNELS = (1, 3)
# Every class has a name and an output of the network: one label gone wrong would take all memory for them.
MOST_CLASSES = 2**16
MOST_NAMED = 10  # in a warning

_BEGINNINGS = (
    b"PK",
    b"\x93NUMPY",
    b"\x80",
)  # of a zip archive, a single array and a pickle: each is told as what it is


def load_arrays(path: str | os.PathLike[str]) -> Dataset:
    """Reads a file with the arrays train_images, train_labels, test_images and test_labels.

    The names x_train, y_train, x_test and y_test do as well. Images are uint8 [N, H, W], [N, C, H, W] or
    [N, H, W, C] with C = 1 or 3: of four axes the second is the channels where its size is 1 or 3, else the
    last is. Labels are integers [N] from 0 up; there are as many classes as the largest label says, and they
    are named by their numbers. Classes without a training image are warned of.

    Args:
        path: a file whose name ends in .npz or .safetensors.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"{file}: expected an .npz or .safetensors file, found none there")
    if file.suffix not in (".npz", ".safetensors"):
        raise DataError(f"{file}: expected a name that ends in .npz or .safetensors, got {file.name!r}")
    arrays = _read_npz(file) if file.suffix == ".npz" else _read_safetensors(file)
    names = list(arrays)
    try:
        train, test = (
            Split(_images(arrays[images], images), _labels(arrays[labels], labels))
            for images, labels in (names[:2], names[2:])
        )
        for name, split in ((names[1], train), (names[3], test)):
            if (highest := int(split.labels.max())) >= MOST_CLASSES:
                raise DataError(f"{name}: expected class numbers below {MOST_CLASSES}, got {highest}")
        count = 1 + max(int(train.labels.max()), int(test.labels.max()))
        _tell_of_unseen_classes(file, train, test, count)
        return Dataset(file.stem, train, test, tuple(map(str, range(count))))
    except DataError as fault:
        raise DataError(f"{file}: {fault}") from fault


def _tell_of_unseen_classes(file: Path, train: Split, test: Split, count: int) -> None:
    """Warns of class numbers that no training image has: holes in the labels, or labels gone wrong."""
    unseen = (train.labels.bincount(minlength=count) == 0).nonzero().flatten()
    if not len(unseen):
        return
    tested = unseen[torch.isin(unseen, test.labels)]
    more = f"; test images have {_some(tested)}" if len(tested) else ""
    log.warning("%s: %d of %d classes have no training image: %s%s", file, len(unseen), count, _some(unseen), more)


def _some(numbers: Tensor) -> str:
    named, rest = numbers[:MOST_NAMED].tolist(), len(numbers) - MOST_NAMED
    return ", ".join(map(str, named)) + (f" and {rest} more" if rest > 0 else "")


def _read_npz(file: Path) -> dict[str, Tensor]:
    try:
        # Given a path, numpy leaves the file open where it turns out to be broken.
        with file.open("rb") as handle:
            # numpy takes whatever it does not know for a pickle.
            if (beginning := handle.read(8)) and not beginning.startswith(_BEGINNINGS):
                raise ValueError(f"no archive of arrays, but a file that begins with {beginning!r}")
            handle.seek(0)
            archive = np.load(handle, allow_pickle=False)
            if isinstance(archive, np.ndarray):
                raise DataError(f"{file}: expected an archive of named arrays, got a single array")
            return {name: _tensor(archive[name], name, file) for name in _wanted(archive.files, file)}
    except (OSError, ValueError, EOFError, zlib.error, zipfile.BadZipFile) as fault:
        if "allow_pickle" in str(fault):
            raise DataError(
                f"{file}: expected plain arrays, got Python objects: they hide a pickle, which could run any"
                " code as it is read, and is therefore never loaded"
            ) from fault
        raise DataError(f"{file}: expected an .npz file that can be read, got: {fault}") from fault


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    try:
        with safe_open(file, framework="pt") as archive:
            return {name: archive.get_tensor(name) for name in _wanted(archive.keys(), file)}
    except (OSError, SafetensorError) as fault:
        raise DataError(f"{file}: expected a safetensors file that can be read, got: {fault}") from fault


def _wanted(names: Iterable[str], file: Path) -> tuple[str, ...]:
    got = sorted(names)
    for four in _NAMES:
        if set(four) <= set(got):
            return four
    expected = " (or ".join(", ".join(four) for four in _NAMES) + ")"
    raise DataError(f"{file}: expected the arrays {expected}, got {', '.join(got) or 'none'}")


def _tensor(array: np.ndarray, name: str, file: Path) -> Tensor:
    try:
        return torch.from_numpy(array)
    except TypeError as fault:
        raise DataError(f"{file}: {name}: expected an array of numbers, got {array.dtype}") from fault


def _images(tensor: Tensor, name: str) -> Tensor:
    """An array in any of the three layouts as [N, C, H, W]."""
    shape = list(tensor.shape)
    if tensor.dtype != torch.uint8:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise DataError(f"{name}: expected uint8 pixels from 0 to 255, got {dtype} {shape}")
    if tensor.ndim == 3:
        return tensor.unsqueeze(1)
    if tensor.ndim == 4 and shape[1] in _CHANNELS:
        return tensor
    if tensor.ndim == 4 and shape[3] in _CHANNELS:
        return tensor.permute(0, 3, 1, 2).contiguous()
    raise DataError(f"{name}: expected [N, H, W], or [N, C, H, W] or [N, H, W, C] with C = 1 or 3, got {shape}")


def _labels(tensor: Tensor, name: str) -> Tensor:
    if tensor.ndim != 1 or tensor.dtype == torch.bool or tensor.is_floating_point() or tensor.is_complex():
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise DataError(f"{name}: expected integers [N], got {dtype} {list(tensor.shape)}")
    return tensor.to(torch.int64)
