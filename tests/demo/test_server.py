"""The demo's server: a few files, for this machine alone."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys

import pytest
from demo_serving import serving

from purecaps.demo import server as serving_module
from purecaps.demo.server import DemoServer, serve


def ask(server: DemoServer, path: str, method: str = "GET") -> tuple[int, str | None, bytes]:
    """Status, content type and body; the path goes out as it is written."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=5)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type"), answer.read()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def server(site):
    with serving(site) as started:
        yield started


def test_it_listens_on_the_loopback_address_alone(server):
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_address[1]}/"
    other = socket.gethostbyname(socket.gethostname())
    if not other.startswith("127."):
        with pytest.raises(ConnectionRefusedError), socket.create_connection((other, server.server_address[1]), 2):
            pass


def test_two_servers_take_two_ports(site, server):
    with DemoServer(site) as second:
        assert second.server_address[1] != server.server_address[1]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", "text/html; charset=utf-8"),
        ("/index.html?again=1", "text/html; charset=utf-8"),
        ("/style.css", "text/css; charset=utf-8"),
        ("/app.js", "text/javascript; charset=utf-8"),
        ("/runtime/ort.js", "text/javascript; charset=utf-8"),
        ("/runtime/ort.wasm", "application/wasm"),
        ("/manifest.json", "application/json"),
        ("/icon.svg", "image/svg+xml"),
        ("/onnxruntime-license.txt", "text/plain; charset=utf-8"),
        ("/networks/pcapsnet2.onnx", "application/octet-stream"),
    ],
)
def test_every_kind_of_file_has_its_type(server, path, kind):
    status, got, body = ask(server, path)
    assert (status, got) == (200, kind)
    assert body == server.site[path.partition("?")[0].lstrip("/") or "index.html"]


def test_every_file_of_the_site_is_served(server):
    for name, data in server.site.items():
        assert ask(server, f"/{name}")[::2] == (200, data)


@pytest.mark.parametrize(
    "path",
    [
        "/../pyproject.toml",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/page/index.html",
        "/networks/",
        "/nothing\\..\\..",
        "/%00",
    ],
)
def test_nothing_but_the_site_can_be_reached(server, path):
    assert ask(server, path) == (404, "text/plain", b"not found\n")


def test_head_has_no_body_and_post_is_refused(server):
    assert ask(server, "/", "HEAD") == (200, "text/html; charset=utf-8", b"")
    assert ask(server, "/", "POST")[0] == 501


@pytest.mark.parametrize("wanted", [True, False])
def test_the_browser_is_opened_unless_it_is_not_wanted(site, monkeypatch, wanted):
    opened, said = [], []
    monkeypatch.setattr(serving_module.webbrowser, "open", opened.append)

    def interrupt(self: DemoServer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DemoServer, "serve_forever", interrupt)
    serve(site, open_browser=wanted, say=said.append)
    assert said[0].startswith("http://127.0.0.1:")
    assert said[1:] == ["ended"]
    assert opened == ([said[0].split()[0]] if wanted else [])


@pytest.mark.skipif(os.name == "nt", reason="needs POSIX signals")
def test_ctrl_c_ends_it_without_a_traceback():
    # A shell starts what runs in the background with Ctrl-C ignored, and a test run may be that.
    program = """
import signal
from purecaps.demo.server import serve
signal.signal(signal.SIGINT, signal.default_int_handler)
serve({"index.html": b"hello"}, open_browser=False, say=lambda text: print(text, flush=True))
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout.readline().startswith("http://127.0.0.1:")
            running.send_signal(signal.SIGINT)
            out, errors = running.communicate(timeout=60)
        finally:
            running.kill()  # else the end of the block would wait for one that goes on
    assert (running.returncode, out, errors) == (0, "ended\n", "")
