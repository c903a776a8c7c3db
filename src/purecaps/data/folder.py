"""A folder of images with one sub-folder a class, as a data set."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor

from purecaps.data.image import as_size, check_channels, is_grey, read_pixels
from purecaps.data.types import Dataset, Split
from purecaps.errors import DataError

log = logging.getLogger("purecaps.data")

TEST_SHARE = 0.2
"""The part of each class that becomes the test split where the folder has none of its own."""

_SYSTEM_FILES = {"thumbs.db", "desktop.ini"}
_LAYOUTS = "DIR/<class>/* or DIR/train/<class>/* with DIR/test/<class>/*"

_HELD_OUT = "images to validate on are held out of train"

_Files = dict[str, list[Path]]


def load_folder(
    path: str | os.PathLike[str],
    *,
    image_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
) -> Dataset:
    """Reads a folder of images, one sub-folder a class; the classes are numbered in the order of their names.

    DIR/train/<class>/* with DIR/test/<class>/* is taken as it stands; other folders there are passed over with a
    warning, for images to validate on are held out of the training split. DIR/<class>/* is split: of each class a
    fifth of the images, at least one, are for testing, namely those whose `<class>/<file>` has the smallest
    sha256. So the split depends on the names alone, is the same on every machine, and hardly moves when
    images are added. Hidden files are ignored.

    Args:
        path: the folder.
        image_size: (H, W) that every image is stretched to, or an int for a square; None where all have one size.
        channels: 1 makes the images grey, 3 makes them RGB; None is 1 where every file is stored as grey and
            3 otherwise.
    """
    root = Path(path)
    if not root.is_dir():
        raise DataError(f"{root}: expected a folder of images, found none there")
    if channels is not None:
        check_channels(channels)
    size = None if image_size is None else as_size(image_size)
    if (root / "train").is_dir() and (root / "test").is_dir():
        _tell_of_more_than_two(root)
        train, test = _class_files(root / "train"), _class_files(root / "test")
        if train.keys() != test.keys():
            odd = sorted(train.keys() ^ test.keys())[0]
            raise DataError(f"{root}: expected each class in both train and test, got {odd!r} in only one")
    else:
        _refuse_half_a_split(root)
        train, test = _split(_class_files(root), root)

    files = [file for side in (train, test) for some in side.values() for file in some]
    if channels is None:
        channels = 1 if all(is_grey(file) for file in files) else 3
    images = _read_all(files, channels, size)
    cut = sum(map(len, train.values()))
    splits = (Split(images[:cut], _labels(train)), Split(images[cut:], _labels(test)))
    return Dataset(root.resolve().name, *splits, tuple(train))


def _tell_of_more_than_two(root: Path) -> None:
    others = [entry.name for entry in _visible(root) if entry.is_dir() and entry.name not in ("train", "test")]
    if others:
        log.warning("%s: only train and test are read, passing over %s; %s", root, ", ".join(others), _HELD_OUT)


def _refuse_half_a_split(root: Path) -> None:
    """Refuses train/<class>/* without test/<class>/*, where train would be taken for a class."""
    train = root / "train"
    if train.is_dir() and any(entry.is_dir() for entry in _visible(train)):
        got = ", ".join(entry.name for entry in _visible(root) if entry.is_dir())
        raise DataError(f"{root}: expected the folders train and test, got {got}; layouts: {_LAYOUTS}; {_HELD_OUT}")


def _class_files(root: Path) -> _Files:
    """The image files of each class under `root`, classes and files in the order of their names."""
    classes = [entry for entry in _visible(root) if entry.is_dir()]
    if not classes:
        raise DataError(f"{root}: expected one sub-folder of images a class, got none; layouts: {_LAYOUTS}")
    if len(classes) == 1:
        raise DataError(f"{root}: expected at least two classes, got one: {classes[0].name!r}; layouts: {_LAYOUTS}")
    files = {folder.name: _visible(folder) for folder in classes}
    for folder in classes:
        if not files[folder.name]:
            raise DataError(f"{folder}: expected at least one image in the class folder, got none")
        for entry in files[folder.name]:
            if entry.is_dir():
                raise DataError(f"{entry}: expected an image, got a folder; layouts: {_LAYOUTS}")
    return files


def _visible(folder: Path) -> list[Path]:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    return [e for e in entries if not e.name.startswith(".") and e.name.lower() not in _SYSTEM_FILES]


def _split(classes: _Files, root: Path) -> tuple[_Files, _Files]:
    train: _Files = {}
    test: _Files = {}
    for name, files in classes.items():
        if len(files) < 2:
            raise DataError(f"{root / name}: expected at least two images, for training and test, got {len(files)}")
        count = max(1, round(TEST_SHARE * len(files)))
        drawn = set(sorted(files, key=lambda file: _rank(name, file))[:count])
        train[name] = [file for file in files if file not in drawn]
        test[name] = [file for file in files if file in drawn]
    return train, test


def _rank(class_name: str, file: Path) -> bytes:
    return hashlib.sha256(f"{class_name}/{file.name}".encode(errors="surrogateescape")).digest()


def _labels(classes: _Files) -> Tensor:
    counts = torch.tensor([len(files) for files in classes.values()])
    return torch.arange(len(classes)).repeat_interleave(counts)


def _read_all(files: Sequence[Path], channels: int, size: tuple[int, int] | None) -> Tensor:
    """All images as uint8 [N, C, H, W]."""
    first = read_pixels(files[0], channels=channels, size=size)
    images = torch.empty(len(files), *first.shape, dtype=torch.uint8)

    def read(index: int) -> None:
        image = read_pixels(files[index], channels=channels, size=size)
        if image.shape != first.shape:
            (height, width), (got_height, got_width) = first.shape[1:], image.shape[1:]
            raise DataError(
                f"{files[index]}: expected height x width of {height} x {width} as {files[0]} has, got"
                f" {got_height} x {got_width}; image_size=(height, width), on the command line --image-size,"
                " brings all images to one size"
            )
        images[index] = image

    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding Python's lock
        for _ in pool.map(read, range(len(files))):
            pass
    return images
