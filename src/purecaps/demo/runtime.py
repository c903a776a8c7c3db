"""onnxruntime-web: fetched on the demo's first use, kept in the cache, held to its hash each time.

docs/decisions has why it is not in the package.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from purecaps.data import cache, fetching
from purecaps.data.decode import Arrays
from purecaps.data.sources import NpmPackage, Source, WebFiles
from purecaps.files import atomic_write

VERSION = "1.30.0"
MODULE = "ort.wasm.bundle.min.mjs"
WASM = "ort-wasm-simd-threaded.wasm"
_FILES = (MODULE, WASM)


@dataclass(frozen=True)
class RuntimeSpec:
    """The files of onnxruntime-web that the page needs.

    Args:
        name: its folder in the cache.
        sha256: the hash of each file.
        sources: where to look, in this order.
    """

    name: str
    sha256: Mapping[str, str]
    sources: tuple[Source, ...]

    def check(self, arrays: Arrays) -> None:
        """Raises ValueError unless the files are those of this version, bit for bit."""
        for name, expected in self.sha256.items():
            if (got := hashlib.sha256(arrays[name].tobytes()).hexdigest()) != expected:
                raise ValueError(f"wrong hash of {name}: expected sha256 {expected}, got {got}")


def read_files(folder: Path) -> Arrays:
    """The files of a source as bytes, by name."""
    return {name: np.fromfile(folder / name, dtype=np.uint8) for name in _FILES}


SPEC = RuntimeSpec(
    name=f"onnxruntime-web-{VERSION}",
    sha256={
        MODULE: "11e64bd8ffe11bd1a2a2f0d6275fdfbbba7262f0b76b99b53d228a8a22ef3d90",
        WASM: "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2",
    },
    sources=(
        WebFiles(base=f"https://cdn.jsdelivr.net/npm/onnxruntime-web@{VERSION}/dist/", files=_FILES, decode=read_files),
        WebFiles(base=f"https://unpkg.com/onnxruntime-web@{VERSION}/dist/", files=_FILES, decode=read_files),
        NpmPackage(name="onnxruntime-web", version=VERSION, folder="package/dist", files=_FILES, decode=read_files),
    ),
)


def load_runtime(root: Path | None = None, spec: RuntimeSpec = SPEC) -> dict[str, bytes]:
    """The runtime's files by name; fetched where they are not in the cache, or not as they should be.

    Args:
        root: where caches are kept; None is $PURECAPS_DATA or the user's cache directory.
        spec: what to load.
    """
    root = root or cache.default_root()
    fetching.bring(spec, root, is_sound=lambda folder: _is_sound(folder, spec), write=_write)
    return {name: (root / spec.name / name).read_bytes() for name in spec.sha256}


def _is_sound(folder: Path, spec: RuntimeSpec) -> bool:
    try:
        spec.check(read_files(folder))
    except (OSError, ValueError):
        return False
    return True


def _write(folder: Path, arrays: Arrays, source: str) -> None:
    for name, data in arrays.items():
        with atomic_write(folder / name) as temporary:
            temporary.write_bytes(data.tobytes())
