"""A data set of thirteen tiny images, a web server on loopback that serves it well or badly, and assertions."""

from __future__ import annotations

import gzip
import http.server
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import numpy as np
import pytest
from numpy.typing import NDArray

from purecaps.data import cache, fetching
from purecaps.data.decode import CONTENT, IDX_FILES, decode_idx, digest
from purecaps.data.progress import Report
from purecaps.data.sources import Source, WebFiles
from purecaps.data.specs import DatasetSpec
from purecaps.errors import DataError

FILES = tuple(f"{name}.gz" for name in IDX_FILES)
_RANDOM = np.random.default_rng(11)
ARRAYS: dict[str, NDArray[np.uint8]] = {
    "train_images": _RANDOM.integers(0, 256, (9, 1, 5, 7), dtype=np.uint8),
    "train_labels": np.array([0, 1, 2, 0, 1, 2, 0, 1, 2], dtype=np.uint8),
    "test_images": _RANDOM.integers(0, 256, (4, 1, 5, 7), dtype=np.uint8),
    "test_labels": np.array([2, 1, 0, 0], dtype=np.uint8),
}

Body = Callable[[bytes], bytes]
"""What is really sent in place of a file's bytes."""


def idx(array: NDArray[np.uint8]) -> bytes:
    plain = array[:, 0] if array.ndim == 4 else array
    return struct.pack(f">HBB{plain.ndim}I", 0, 8, plain.ndim, *plain.shape) + plain.tobytes()


def payloads() -> dict[str, bytes]:
    return {name: gzip.compress(idx(ARRAYS[key])) for key, name in zip(CONTENT, FILES, strict=True)}


def toy_spec(*sources: Source) -> DatasetSpec:
    return DatasetSpec(
        name="toy",
        about="a toy",
        in_shape=(1, 5, 7),
        class_names=("a", "b", "c"),
        train_size=9,
        test_size=4,
        sha256={key: digest(array) for key, array in ARRAYS.items()},
        sources=sources,
    )


class FakeWeb:
    """Serves the toy set below /good/, and below other paths the bodies that a test gives.

    Args:
        faults: by path, what is sent in place of each file; its Content-Length stays that of the real file.
        slow: seconds to wait before each answer.
    """

    def __init__(self, *, slow: float = 0.0, **faults: Body) -> None:
        self.requests: list[str] = []
        self._closing = threading.Event()
        self.files, web = payloads(), self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                web.requests.append(self.path)
                web._closing.wait(slow)
                kind, _, name = self.path.lstrip("/").partition("/")
                if kind not in {"good", *faults} or name not in web.files:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(web.files[name])))
                self.end_headers()
                self.wfile.write(faults.get(kind, bytes)(web.files[name]))

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> FakeWeb:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def source(self, path: str = "good") -> WebFiles:
        return WebFiles(base=f"http://127.0.0.1:{self._server.server_port}/{path}/", files=FILES, decode=decode_idx)


def closed_port() -> WebFiles:
    return WebFiles(base="http://127.0.0.1:9/", files=FILES, decode=decode_idx)


def forged_labels() -> Source:
    class Forger(Source):
        def __str__(self) -> str:
            return "the forger"

        def obtain(self, into: Path, report: Report) -> Path:
            for key, name in zip(ARRAYS, IDX_FILES, strict=True):
                array = ARRAYS[key].copy()
                array.flat[0] ^= key == "test_labels"
                (into / name).write_bytes(idx(array))
            return into

    return Forger(files=IDX_FILES, decode=decode_idx)


def assert_fetch_fails(spec: DatasetSpec, root: Path, *said: str) -> None:
    with pytest.raises(DataError) as caught:
        fetching.fetch(spec, root)
    for piece in ("cannot fetch toy", *said):
        assert piece in str(caught.value)


def assert_nothing_left(root: Path) -> None:
    left = {path.name for path in root.rglob("*")} - {".toy.lock"}
    assert left == set()


def assert_toy_cache(root: Path, spec: DatasetSpec) -> None:
    train, test = cache.read(root / "toy", spec)
    assert np.array_equal(train.images.numpy(), ARRAYS["train_images"])
    assert np.array_equal(test.images.numpy(), ARRAYS["test_images"])
    assert train.labels.tolist() == ARRAYS["train_labels"].tolist()
    assert cache.verify(root / "toy", spec) == ()
    assert {path.name for path in root.iterdir()} <= {"toy", ".toy.lock"}
