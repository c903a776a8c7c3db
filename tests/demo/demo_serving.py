"""A server of the demo that is stopped, and a stand-in for onnxruntime-web."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping

from purecaps.demo.runtime import MODULE, WASM
from purecaps.demo.server import DemoServer

FAKE_RUNTIME = {MODULE: b"export {};", WASM: b"\0asm"}


@contextlib.contextmanager
def serving(site: Mapping[str, bytes]) -> Iterator[DemoServer]:
    with DemoServer(site) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
