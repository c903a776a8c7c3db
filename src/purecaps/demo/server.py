"""The demo on this machine: a few files from memory, for this machine alone."""

from __future__ import annotations

import threading
import webbrowser
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from purecaps._version import __version__

LOOPBACK = "127.0.0.1"
# Not mimetypes: it asks the system's own tables, some of which call a module text/plain.
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".wasm": "application/wasm",
}


class DemoServer(ThreadingHTTPServer):
    """Serves files from memory on a free port of the loopback address.

    Args:
        site: every file by its path; there is nothing else that could be asked for.
    """

    daemon_threads = True

    def __init__(self, site: Mapping[str, bytes]) -> None:
        self.site = site
        super().__init__((LOOPBACK, 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server_version = f"purecaps/{__version__}"
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        assert isinstance(self.server, DemoServer)
        name = unquote(urlsplit(self.path).path).removeprefix("/") or "index.html"
        data = self.server.site.get(name)
        found = data is not None
        body = data if data is not None else b"not found\n"
        self.send_response(HTTPStatus.OK if found else HTTPStatus.NOT_FOUND)
        kind = TYPES.get(PurePosixPath(name).suffix, "application/octet-stream") if found else "text/plain"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")  # the next run may have other files on the same port
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 (the names are http.server's)

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing: a line a request would bury the address."""


def serve(site: Mapping[str, bytes], *, open_browser: bool, say: Callable[[str], None]) -> None:
    """Serves the demo until Ctrl-C.

    Args:
        site: what `make_site` gives.
        open_browser: whether to open the page.
        say: told the address, and the end.
    """
    with DemoServer(site) as server:
        try:
            say(f"{server.url} (Ctrl-C ends it)")
            if open_browser:
                # A browser of the terminal would hold up the page that it asks for.
                threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
            server.serve_forever()
        except KeyboardInterrupt:
            say("ended")
