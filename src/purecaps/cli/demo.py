"""`purecaps demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from purecaps.cli.options import Device, Root, Seed
from purecaps.cli.support import out
from purecaps.demo.runtime import load_runtime
from purecaps.demo.server import serve
from purecaps.demo.site import build, make_site, require_empty


def demo(
    *,
    folder: Annotated[
        Path | None, typer.Option("--build", help="Write the page to this new folder, for any web host, and stop.")
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    root: Root = None,
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """A page, for this machine alone, that reads digits as you draw them and shows every capsule."""
    if folder is not None:
        require_empty(folder)  # before anything is fetched
    site = make_site(load_runtime(root))
    if folder is None:
        serve(site, open_browser=browser, say=lambda text: out.print(text, soft_wrap=True))
        return
    build(site, folder)
    size = sum(map(len, site.values()))
    out.print(f"{folder}: {len(site)} files, {size / 1e6:.1f} MB; serve it with any web server", soft_wrap=True)
