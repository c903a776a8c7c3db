"""The cache: ROOT/<name>/ with the images in safetensors parts and a manifest.

    ROOT/cifar10/train-00-of-10.safetensors   images uint8 [N, C, H, W], labels uint8 [N]
    ROOT/cifar10/manifest.json                every part's size and sha256; written last

A cache is there if and only if its manifest is. Loading checks names, sizes and shapes, which costs nothing;
`verify` hashes everything. A damaged cache is never mended behind the user's back: loading it is an error
that says which file is wrong and which command fetches it anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load_file
from torch import Tensor

from purecaps.data.decode import Arrays
from purecaps.data.specs import DatasetSpec
from purecaps.data.types import Dataset, Split
from purecaps.errors import DataError
from purecaps.files import atomic_write

PART_BYTES = 16_000_000
"""The most image bytes in one part: small enough to be copied about, large enough to be few."""

_MANIFEST = "manifest.json"
_SPLITS = ("train", "test")


@dataclass(frozen=True)
class Part:
    """One file of a cache: its name, how many images and bytes it holds, and its hash."""

    file: str
    images: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a complete cache holds, and the source that it came from."""

    name: str
    source: str
    train: tuple[Part, ...]
    test: tuple[Part, ...]

    @property
    def parts(self) -> tuple[Part, ...]:
        return self.train + self.test


def default_root() -> Path:
    """Where caches are kept: $PURECAPS_DATA, or purecaps under the user's cache directory."""
    if given := os.environ.get("PURECAPS_DATA"):
        return Path(given).expanduser()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        # The XDG specification says to ignore a relative path here.
        stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = stated if stated.is_absolute() else Path.home() / ".cache"
    return base / "purecaps"


def exists(folder: Path) -> bool:
    """Whether there is a cache in `folder`, sound or damaged."""
    return (folder / _MANIFEST).is_file()


def read_manifest(folder: Path, spec: DatasetSpec) -> Manifest:
    """Reads and checks a cache's manifest and that the parts it names are there in their full size."""
    path = folder / _MANIFEST
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
        parts = {split: tuple(Part(**part) for part in stated[split]) for split in _SPLITS}
        manifest = Manifest(name=stated["name"], source=stated["source"], **parts)
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise _damaged(spec, path, f"it cannot be read ({fault})") from fault
    for split, size in zip(_SPLITS, (spec.train_size, spec.test_size), strict=True):
        if (got := sum(part.images for part in parts[split])) != size or manifest.name != spec.name:
            raise _damaged(spec, path, f"expected {size} {split} images of {spec.name}, got {got} of {manifest.name}")
    for part in manifest.parts:
        file = folder / part.file
        if file.parent != folder or not file.is_file():
            raise _damaged(spec, file, "it is missing")
        if (size := file.stat().st_size) != part.bytes:
            raise _damaged(spec, file, f"expected {part.bytes} bytes, got {size}")
    return manifest


def read(folder: Path, spec: DatasetSpec) -> Dataset:
    """Loads a cache.

    Args:
        folder: the set's own folder, ROOT/<name>.
        spec: the set it should hold.
    """
    manifest = read_manifest(folder, spec)
    train, test = (
        _join([_read_part(folder / part.file, part.images, spec) for part in parts])
        for parts in (manifest.train, manifest.test)
    )
    return Dataset(spec.name, train, test, spec.class_names)


def write(folder: Path, spec: DatasetSpec, arrays: Arrays, source: str) -> None:
    """Writes parts and manifest into `folder`; ENOSPC and its like come out as OSError."""
    parts: dict[str, tuple[Part, ...]] = {}
    for split in _SPLITS:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        count = max(1, -(-images.nbytes // PART_BYTES))
        pieces = zip(np.array_split(images, count), np.array_split(labels, count), strict=True)
        parts[split] = tuple(
            # Safetensors' own file writer hides the reason of a fault; bytes written here do not.
            _write_part(
                folder / f"{split}-{index:02d}-of-{count:02d}.safetensors",
                save({"images": np.ascontiguousarray(some), "labels": np.ascontiguousarray(their)}),
                len(some),
            )
            for index, (some, their) in enumerate(pieces)
        )
    manifest = Manifest(name=spec.name, source=source, **parts)
    with atomic_write(folder / _MANIFEST) as temporary:
        temporary.write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")


def install(staging: Path, folder: Path) -> None:
    """Moves a cache that was written whole in `staging` to `folder`, on the same disk, manifest last.

    Whoever reads `folder` meanwhile meets old or new files, never part of one; the two differ only where the
    old ones were damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted((path.name for path in staging.iterdir()), key=lambda name: name == _MANIFEST)
    for name in names:
        os.replace(staging / name, folder / name)
    for split in _SPLITS:
        for path in folder.glob(f"{split}-??-of-??.safetensors"):
            if path.name not in names:
                path.unlink()


def verify(folder: Path, spec: DatasetSpec) -> tuple[str, ...]:
    """Hashes every byte of a cache and says what is wrong with it, a line a fault; none where it is sound."""
    try:
        manifest = read_manifest(folder, spec)
    except DataError as fault:
        return (str(fault),)
    faults = []
    for part in manifest.parts:
        got = hashlib.sha256((folder / part.file).read_bytes()).hexdigest()
        if got != part.sha256:
            faults.append(f"{folder / part.file}: expected sha256 {part.sha256}, got {got}")
    if faults:
        return tuple(faults)
    try:
        train, test = read(folder, spec)
        spec.check(
            {
                "train_images": train.images.numpy(),
                "train_labels": train.labels.to(torch.uint8).numpy(),
                "test_images": test.images.numpy(),
                "test_labels": test.labels.to(torch.uint8).numpy(),
            }
        )
    except (DataError, ValueError) as fault:
        return (f"{folder}: {fault}",)
    return ()


def _write_part(path: Path, data: bytes, images: int) -> Part:
    with atomic_write(path) as temporary:
        temporary.write_bytes(data)
    return Part(path.name, images, len(data), hashlib.sha256(data).hexdigest())


def _read_part(path: Path, count: int, spec: DatasetSpec) -> tuple[Tensor, Tensor]:
    try:
        tensors = load_file(path)
        images, labels = tensors["images"], tensors["labels"]
    except (OSError, SafetensorError, KeyError) as fault:
        raise _damaged(spec, path, f"it cannot be read ({fault})") from fault
    expected = (count, *spec.in_shape)
    if tuple(images.shape) != expected or tuple(labels.shape) != (count,):
        raise _damaged(spec, path, f"expected images {list(expected)}, got {list(images.shape)}")
    return images, labels


def _join(parts: list[tuple[Tensor, Tensor]]) -> Split:
    images, labels = zip(*parts, strict=True)
    return Split(torch.cat(images), torch.cat(labels).to(torch.int64))


def _damaged(spec: DatasetSpec, path: Path, why: str) -> DataError:
    return DataError(
        f"the cached data set {spec.name} is damaged: {path}: {why};"
        f" to fetch it anew: purecaps data fetch {spec.name} --force"
    )
