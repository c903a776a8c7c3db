"""Tensors and a little JSON in one safetensors file, written whole or not at all, checked when read.

Nothing here can run code that a file brings along: pickles are recognised and refused.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from purecaps.errors import CheckpointError
from purecaps.files import atomic_write

FORMAT = "purecaps"
VERSION = 1


def write_tensors(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]
) -> None:
    """Writes tensors and JSON-able `meta` to `path`, atomically.

    Args:
        path: the file to write.
        kind: what the file is ("model", "checkpoint"); reading asks for it again.
        tensors: by name; saved contiguous and on the CPU.
        meta: anything JSON can hold.
    """
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(meta, sort_keys=True)
    header = {
        "format": FORMAT,
        "version": str(VERSION),
        "kind": kind,
        "meta": text,
        "digest": _digest(flat, text),
    }
    with atomic_write(path) as temporary:
        # Not safetensors' own file writer: it turns a full disk into an error that no longer says so.
        temporary.write_bytes(save(flat, metadata=header))


def read_tensors(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write_tensors` wrote, and checks that it is whole and of the expected kind."""
    source = Path(path)
    if not source.is_file():
        raise CheckpointError(f"{source}: expected a {kind} file, found no such file")
    _refuse_pickle(source)
    try:
        with safe_open(source, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{source}: expected a whole safetensors file, but it is corrupt: {error}") from error
    if header.get("format") != FORMAT or header.get("version") != str(VERSION):
        raise CheckpointError(
            f"{source}: expected a file written by purecaps (format version {VERSION}), "
            f"got format {header.get('format')!r} version {header.get('version')!r}"
        )
    if header.get("kind") != kind:
        raise CheckpointError(f"{source}: expected a {kind} file, got a {header.get('kind')} file")
    text = header.get("meta", "")
    if header.get("digest") != _digest(tensors, text):
        raise CheckpointError(f"{source}: corrupt: its contents do not match the digest written with them")
    meta: dict[str, Any] = json.loads(text)
    return tensors, meta


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """What kind of file `write_tensors` wrote there; None for any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
    except (SafetensorError, OSError):
        return None
    return header.get("kind") if header.get("format") == FORMAT else None


def _digest(tensors: Mapping[str, Tensor], text: str) -> str:
    state = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return state.hexdigest()


def _refuse_pickle(path: Path) -> None:
    with open(path, "rb") as file:
        head = file.read(9)
    # A safetensors file begins with its header's length, which may well look like a pickle's first byte, and a brace.
    if head[8:] == b"{" and int.from_bytes(head[:8], "little") < path.stat().st_size:
        return
    # torch.save writes a zip archive around a pickle, or, in older versions, a bare pickle.
    if head.startswith(b"PK\x03\x04") or head[:1] == b"\x80":
        raise CheckpointError(
            f"{path}: refused: this is a pickle or a zip archive with one (as torch.save writes), which can run any "
            "program when it is loaded; purecaps reads safetensors files only"
        )
