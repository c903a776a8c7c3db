"""What the demo's tests share: its files and a browser."""

from __future__ import annotations

import importlib.util
import os
import shutil

import pytest
from demo_serving import FAKE_RUNTIME

from purecaps.demo.runtime import load_runtime
from purecaps.demo.site import make_site

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# Every name but the loopback address is unknown to this browser: the page has to work without a network.
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)


@pytest.fixture(scope="session")
def site() -> dict[str, bytes]:
    """The demo's files, with a stand-in for onnxruntime-web."""
    return make_site(FAKE_RUNTIME)


@pytest.fixture(scope="session")
def whole_site() -> dict[str, bytes]:
    """The demo's files; fetches onnxruntime-web on first use."""
    return make_site(load_runtime())


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium. Without one the tests are skipped; in CI they fail.

    Not for the whole session: while its driver runs, no other test could have an event loop.
    """
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    has_driver = importlib.util.find_spec("playwright") is not None
    if program is None or not has_driver:
        missing = "Chromium" if program is None else "playwright (pip install playwright)"
        assert os.environ.get("CI") != "true", f"expected {missing} in CI, found none"
        pytest.skip(f"needs {missing}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=list(OPTIONS))
        yield started
        started.close()
