"""What a person does on the demo's page, and what is looked at afterwards."""

from __future__ import annotations

import io
import math
import re

import numpy as np
from PIL import Image

PATIENCE = 20_000  # milliseconds: the runtime is 14 MB to compile, on a machine that may be busy


def arc(x, y, wide, high, start, end, count=10):
    angles = [math.radians(start + (end - start) * step / count) for step in range(count + 1)]
    return [(x + wide * math.cos(angle), y + high * math.sin(angle)) for angle in angles]


# Strokes of digits, in parts of the pad's side.
DIGITS = {
    0: [arc(0.5, 0.5, 0.22, 0.34, -90, 270, 16)],
    2: [[*arc(0.5, 0.32, 0.2, 0.18, -170, 20), (0.3, 0.84), (0.74, 0.82)]],
    4: [[(0.36, 0.15), (0.28, 0.52), (0.72, 0.52)], [(0.62, 0.3), (0.6, 0.88)]],
    7: [[(0.28, 0.18), (0.72, 0.18), (0.46, 0.86)]],
}


class Seen:
    """What a page said and asked for while a test ran."""

    def __init__(self, page) -> None:
        self.faults: list[str] = []
        self.addresses: list[str] = []
        page.on(
            "console",
            lambda message: self.faults.append(message.text) if message.type in ("error", "warning") else None,
        )
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("request", lambda request: self.addresses.append(request.url))


def open_page(context, address: str):
    from playwright.sync_api import expect

    page = context.new_page()
    page.seen = Seen(page)
    page.goto(address)
    expect(page.locator("#notice")).to_be_empty(timeout=PATIENCE)
    return page


def draw(page, digit: int, *, scale: float = 1.0, middle: tuple[float, float] = (0.5, 0.5)) -> None:
    page.locator("#ink").scroll_into_view_if_needed()
    box = page.locator("#ink").bounding_box()
    for stroke in DIGITS[digit]:
        points = [
            (
                box["x"] + (middle[0] + (x - 0.5) * scale) * box["width"],
                box["y"] + (middle[1] + (y - 0.5) * scale) * box["height"],
            )
            for x, y in stroke
        ]
        page.mouse.move(*points[0])
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*point)
        page.mouse.up()


def clear(page) -> None:
    if page.locator("#clear").is_enabled():
        page.locator("#clear").click()
    assert_reads(page, "–")


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def open_file(page, data: bytes, name: str = "digit.png") -> None:
    page.locator("#file").set_input_files({"name": name, "mimeType": "image/png", "buffer": data})


def assert_reads(page, answer: int | str) -> None:
    from playwright.sync_api import expect

    expect(page.locator("#digit")).to_have_text(str(answer), timeout=PATIENCE)


def assert_text(page, where: str, text: str) -> None:
    from playwright.sync_api import expect

    expect(page.locator(where)).to_have_text(re.compile(text), timeout=PATIENCE)


def lengths(page, name: str = "lengths") -> list[str]:
    return page.locator(f"#{name} .value").all_inner_texts()
