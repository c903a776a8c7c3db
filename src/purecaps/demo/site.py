"""The demo as files: the page, its networks, and a manifest that says which there are."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from purecaps._version import __version__
from purecaps.demo.runtime import MODULE, WASM
from purecaps.errors import ConfigError
from purecaps.models.store import load_model, pretrained_path
from purecaps.quant import QuantisedPCapsNet

NETWORKS = ("pcapsnet1", "pcapsnet2", "pcapsnet3", "pcapsnet0")  # from the smallest to the largest
FIRST = "pcapsnet2"
FLOAT_BYTES = 4
# The module is renamed: not every host knows that .mjs is JavaScript.
RUNTIME = {MODULE: "runtime/ort.js", WASM: "runtime/ort.wasm"}


def make_site(runtime: Mapping[str, bytes]) -> dict[str, bytes]:
    """Every file of the demo by its path, with / between folders.

    Args:
        runtime: onnxruntime-web's files, as `load_runtime` gives them.
    """
    package = resources.files("purecaps.demo")
    site = {file.name: file.read_bytes() for file in _files(package / "page")}
    site |= {f"networks/{file.name}": file.read_bytes() for file in _files(package / "networks")}
    site |= {path: runtime[name] for name, path in RUNTIME.items()}
    for name in (*NETWORKS, *(f"{name}-int8" for name in NETWORKS)):
        site[f"networks/{name}.safetensors"] = _weights_path(name).read_bytes()
    site["manifest.json"] = json.dumps(make_manifest(), indent=1).encode() + b"\n"
    return site


def make_manifest() -> dict[str, Any]:
    """What the page can show. A variant more is an entry more."""
    return {
        "version": __version__,
        "first": FIRST,
        "runtime": {"module": RUNTIME[MODULE], "wasm": RUNTIME[WASM]},
        "networks": [_network(name) for name in NETWORKS],
    }


def require_empty(folder: Path) -> None:
    """Refuses a folder that holds something."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"--build: expected a new or empty folder, got {folder}, which is there already")


def build(site: Mapping[str, bytes], folder: Path) -> None:
    """Writes the site to a new or empty folder, whole or not at all.

    Args:
        site: what `make_site` gives.
        folder: where to; the folders above it are made.
    """
    require_empty(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        for name, data in site.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        # mkdtemp's folder is the user's alone; a web server has to read this one.
        umask = os.umask(0)
        os.umask(umask)
        staging.chmod(0o777 & ~umask)
        if folder.exists():
            folder.rmdir()  # some systems rename onto an empty folder, others do not
        staging.rename(folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def _network(name: str) -> dict[str, Any]:
    _, info = load_model(_weights_path(name))
    quantised = QuantisedPCapsNet.from_package(name)
    parameters = info.record["parameters"]
    return {
        "name": name,
        "parameters": parameters,
        "direction": f"networks/{name}-direction.onnx",
        "weights": f"networks/{name}.safetensors",
        "variants": [
            {
                "precision": "float32",
                "reading": f"networks/{name}.onnx",
                "weights": f"networks/{name}.safetensors",
                "bytes": FLOAT_BYTES * parameters,
                "test_error": info.record["test_error"],
            },
            {
                "precision": "int8",
                "reading": f"networks/{name}-int8.onnx",
                "weights": f"networks/{name}-int8.safetensors",
                "bytes": quantised.constant_bytes,
                "test_error": quantised.info.record["test_error"],
            },
        ],
    }


def _weights_path(name: str) -> Path:
    path = pretrained_path(name)
    assert path is not None, f"{name} has packaged weights"
    return path


def _files(folder: Traversable) -> list[Traversable]:
    return sorted((file for file in folder.iterdir() if file.is_file()), key=lambda file: file.name)
