"""The page in a real browser that has no network: what a person does with it, and what they see."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from demo_serving import serving
from page_steps import (
    PATIENCE,
    assert_reads,
    assert_text,
    clear,
    draw,
    lengths,
    open_file,
    open_page,
    png,
)

from purecaps.demo.site import NETWORKS, build
from purecaps.models import create_model
from purecaps.quant import QuantisedPCapsNet

pytestmark = pytest.mark.net  # onnxruntime-web is fetched on first use


@pytest.fixture(scope="module")
def address(whole_site):
    with serving(whole_site) as server:
        yield server.url


@pytest.fixture(scope="module")
def context(browser):
    with browser.new_context(viewport={"width": 1100, "height": 900}) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(context, address):
    return open_page(context, address)


@pytest.fixture
def page(shared, address):
    """The page with an empty pad; afterwards it has to have been quiet, and to have asked nobody else."""
    clear(shared)
    yield shared
    assert shared.seen.faults == []
    assert {url for url in shared.seen.addresses if not url.startswith(address)} == set()


@pytest.fixture(scope="module")
def ten(digits):
    """A real digit of each class, uint8 [10, 28, 28]."""
    labels = torch.cat([digits.train.labels, digits.test.labels])
    images = torch.cat([digits.train.images, digits.test.images])
    first = [int((labels == digit).nonzero()[1]) for digit in range(10)]
    return images[first, 0].numpy()


@pytest.mark.parametrize(
    ("digit", "scale", "middle"), [(2, 1, (0.5, 0.5)), (4, 0.4, (0.75, 0.25)), (0, 0.6, (0.35, 0.6))]
)
def test_strokes_are_read_wherever_they_are_drawn(page, digit, scale, middle):
    draw(page, digit, scale=scale, middle=middle)
    assert_reads(page, digit)
    assert page.locator("#lengths .best .name").inner_text() == str(digit)
    assert float(page.locator("#lengths .best .value").inner_text()) == max(map(float, lengths(page)))
    assert re.fullmatch(r"in \d+\.\d ms", page.locator("#time").inner_text())


def test_ten_real_digits_are_recognised_with_pytorchs_lengths(page, ten):
    network = create_model("pcapsnet2", pretrained=True)
    for digit, image in enumerate(ten):
        open_file(page, png(image), f"{digit}.png")
        assert_reads(page, digit)
        assert_lengths(page, network, image)


def assert_lengths(page, network, image) -> None:
    """The page's numbers, which have two places, are PyTorch's."""
    with torch.no_grad():
        expected = network(torch.from_numpy(image)[None, None] / int(image.max()))
    if isinstance(network, QuantisedPCapsNet):
        expected = network.length_of(expected)
    np.testing.assert_allclose(np.array(lengths(page), dtype=float), expected[0].numpy(), atol=0.00502)


def test_ink_on_paper_is_told_from_its_ground(page, ten):
    photograph = 225 - 150 * (np.kron(ten[3], np.ones((9, 9))) / 255) - np.linspace(0, 30, 252)
    photograph += np.random.default_rng(0).normal(0, 3, photograph.shape)
    open_file(page, png(np.pad(photograph, ((60, 200), (90, 90)), "edge").clip(0, 255).astype(np.uint8)))
    assert_reads(page, 3)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_every_variant_reads_and_shows_itself(page, ten, name, precision):
    from playwright.sync_api import expect

    page.get_by_label(name).check()
    page.get_by_label(precision).check()
    open_file(page, png(ten[7]))
    assert_reads(page, 7)
    expect(page.locator("#notice")).to_be_empty(timeout=PATIENCE)
    network = create_model(name, pretrained=True)
    assert_lengths(page, network if precision == "float32" else QuantisedPCapsNet.from_package(name), ten[7])
    assert page.locator("#lead-parameters").inner_text() == f"{sum(w.numel() for w in network.parameters()):,}"
    for number, block in enumerate(network.capsule_blocks(), start=1):
        layer = page.locator(f".layer:nth-child({number})")
        _, _, _, out, _, _, p = block.conv.weight.shape
        assert layer.locator(".filters canvas").count() == out
        assert f"{p} numbers" in layer.locator(".about").inner_text()
    assert page.locator(".layer:nth-child(5) .block.best").inner_text() == "7"


PIXELS = """([layer, kind, block]) => {
  const canvas = document.querySelectorAll(`.layer:nth-child(${layer}) .${kind} canvas`)[block];
  return [canvas.width, ...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data];
}"""


def assert_shows(page, where: list, tiles: torch.Tensor) -> None:
    """A canvas shows [rows, columns, height, width]: strong numbers above zero are red, those below are blue."""
    width, *data = page.evaluate(PIXELS, where)
    pixels = torch.tensor(data).reshape(-1, width, 4)
    rows, columns, high, wide = tiles.shape
    limit = tiles.abs().max()
    for row in range(rows):
        for column in range(columns):
            shown = pixels[row * (high + 1) :, column * (wide + 1) :][:high, :wide]
            redness = shown[..., 0] - shown[..., 2]
            assert (redness[tiles[row, column] > 0.3 * limit] > 20).all()
            assert (redness[tiles[row, column] < -0.3 * limit] < -20).all()


def test_the_pictures_show_the_numbers(page, ten):
    network = create_model("pcapsnet3", pretrained=True)
    page.get_by_label("pcapsnet3").check()
    page.get_by_label("float32").check()
    open_file(page, png(ten[8]))
    assert_reads(page, 8)
    with torch.no_grad():
        maps = network.features(torch.from_numpy(ten[8])[None, None] / int(ten[8].max()))
    # A matrix of one row goes on below after eight numbers.
    assert_shows(page, [1, "capsules", 0], maps[0][0, 0, :, :, 0, 0].permute(2, 0, 1).unflatten(0, (4, 8)))
    for capsule in (0, 3):
        assert_shows(page, [3, "capsules", capsule], maps[2][0, capsule, :, :, 0].permute(2, 3, 0, 1))
        weight = network.capsule_blocks()[2].conv.weight.detach()[:, :, :, capsule, 0]  # [kh, kw, C, n, p]
        assert_shows(page, [3, "filters", capsule], weight.permute(2, 3, 4, 0, 1).flatten(0, 1))


INTEGERS = """async ([path, image]) => {
  const ort = await import(new URL("runtime/ort.js", document.baseURI)); // the one that the page has set up
  const session = await ort.InferenceSession.create(path);
  const { scores } = await session.run({ images: new ort.Tensor("float32", Float32Array.from(image), [1, 1, 28, 28]) });
  return Array.from(scores.data);
}"""


@pytest.mark.parametrize("name", NETWORKS)
def test_in_the_browser_integers_are_the_same_integers(page, ten, name):
    network = QuantisedPCapsNet.from_package(name)
    for digit in (0, 5):
        image = torch.from_numpy(ten[digit])[None, None] / 255
        found = page.evaluate(INTEGERS, [f"networks/{name}-int8.onnx", image.flatten().tolist()])
        assert found == network(image)[0].tolist()


def test_the_attack_changes_lengths_with_epsilon_and_not_without(page, ten):
    page.get_by_label("pcapsnet2").check()
    page.get_by_label("float32").check()
    open_file(page, png(ten[4]))
    assert_reads(page, 4)
    page.locator("#epsilon").fill("0")
    assert_text(page, "#verdict", "Still read as 4.")
    assert lengths(page, "attacked-lengths") == lengths(page)
    page.locator("#epsilon").fill("0.3")
    assert_text(page, "#verdict", r"Now read as \d, no longer as 4\.")
    assert page.locator("#epsilon-value").inner_text() == "0.30"
    assert lengths(page, "attacked-lengths") != lengths(page)
    page.locator("#epsilon").fill("0.1")


def test_a_digit_can_be_drawn_by_keyboard_alone(page):
    page.locator("#ink").focus()
    before = page.evaluate("scrollY")
    for keys in ("Shift+ArrowUp Shift+ArrowUp Shift+ArrowLeft ArrowLeft", "Space", "Shift+ArrowRight Shift+ArrowRight ArrowRight ArrowRight",
                 "ArrowLeft ArrowDown ArrowDown ArrowDown " * 5, "Space", "ArrowUp"):  # fmt: skip
        for key in keys.split():
            page.keyboard.press(key)
    assert_reads(page, 7)
    assert page.evaluate("scrollY") == before
    page.keyboard.press("Control+z")
    assert_reads(page, "–")
    assert page.locator("#pen").inner_text().startswith("column ")


def test_strokes_and_clearing_can_be_taken_back(page):
    draw(page, 4)
    assert_reads(page, 4)
    page.locator("#clear").click()
    assert_reads(page, "–")
    page.locator("#undo").click()
    assert_reads(page, 4)
    page.locator("#undo").click()  # one of two strokes is left
    assert page.locator("#clear").is_enabled()
    page.locator("#undo").click()
    assert_reads(page, "–")


def test_a_click_draws_a_dot_that_can_be_taken_back(page):
    # In the middle, and not far from the pen's edge.
    ink = "() => [224, 238].map((x) => document.querySelector('#ink').getContext('2d').getImageData(x, 224, 1, 1).data[3])"
    page.locator("#ink").click()
    assert page.evaluate(ink) == [255, 255]
    assert_text(page, "#digit", r"\d")
    page.emulate_media(color_scheme="dark")  # which draws everything anew
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ink) == [255, 255]
    page.locator("#undo").click()
    assert page.evaluate(ink) == [0, 0]
    assert_reads(page, "–")


# The first image takes long, and is then what it is.
SLOW = """() => {
  const read = window.createImageBitmap;
  window.createImageBitmap = async (file) => {
    window.createImageBitmap = read;
    await new Promise((done) => (window.finish = done));
    return read(file);
  };
}"""


@pytest.mark.parametrize("late", ["not an image", "an image"])
def test_an_image_that_comes_late_does_not_replace_a_newer_one(page, ten, late):
    page.evaluate(SLOW)
    open_file(page, b"not an image" if late == "not an image" else png(ten[3]), "late.png")
    page.wait_for_function("() => Boolean(window.finish)")
    open_file(page, png(ten[7]))
    assert_reads(page, 7)
    page.evaluate("async () => { finish(); await new Promise((done) => setTimeout(done, 300)); delete window.finish; }")
    assert_reads(page, 7)
    assert_text(page, "#notice", "^$")


def test_an_empty_pad_asks_for_a_digit(page):
    from playwright.sync_api import expect

    expect(page.locator("#hint")).to_be_visible()
    assert page.locator("#hint").inner_text() == "Draw a digit here"
    assert lengths(page) == [""] * 10
    assert page.locator("#clear").is_disabled()
    draw(page, 7)
    expect(page.locator("#hint")).to_be_hidden()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"not an image", r"digit\.png is not an image that this browser can read"),
        (png(np.zeros((28, 28), np.uint8))[:60], r"digit\.png is not an image that this browser can read"),
        (png(np.full((60, 40), 200, np.uint8)), r"No digit stands out from the ground in digit\.png"),
        (png(np.zeros((7200, 7300), bool)), r"digit\.png is 7300 × 7200 pixels; this page takes up to 50 million"),
        (26_000_000, r"digit\.png has 26 MB; this page takes up to 25 MB"),
    ],
    ids=["text", "truncated", "blank", "too many pixels", "too many bytes"],
)
def test_a_file_that_cannot_be_used_is_a_message_and_the_drawing_stays(page, data, message, tmp_path):
    draw(page, 7)
    path = tmp_path / "digit.png"
    with path.open("wb") as file:
        if isinstance(data, int):
            file.truncate(data)
        else:
            file.write(data)
    page.locator("#file").set_input_files(path)
    assert_text(page, "#notice", message)
    assert_reads(page, 7)
    draw(page, 7)
    assert_text(page, "#notice", "^$")


def test_a_large_image_is_scaled_down(page, ten):
    open_file(page, png(np.kron(ten[2], np.ones((101, 103), np.uint8))))
    assert_reads(page, 2)


def test_a_finger_draws_on_a_phone_and_nothing_is_cut_off(browser, address):
    with browser.new_context(
        viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, color_scheme="dark"
    ) as phone:
        page = open_page(phone, address)
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        box = page.locator("#ink").bounding_box()
        fingers = phone.new_cdp_session(page)
        path = [(0.3, 0.2), (0.5, 0.2), (0.7, 0.2), (0.6, 0.4), (0.5, 0.65), (0.45, 0.85)]
        for kind, (x, y) in zip(["touchStart"] + ["touchMove"] * 5, path, strict=True):
            point = {"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]}
            fingers.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": [point]})
        fingers.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        assert_reads(page, 7)
        assert page.evaluate("scrollY") == 0
        light = page.evaluate("getComputedStyle(document.querySelector('#ink')).color")
        page.emulate_media(color_scheme="light")
        assert page.evaluate("getComputedStyle(document.querySelector('#ink')).color") != light
        assert_reads(page, 7)
        assert page.seen.faults == []


@pytest.mark.parametrize("broken", ["runtime/ort.wasm", "networks/pcapsnet2.onnx", "manifest.json"])
def test_what_cannot_be_loaded_is_a_message(browser, whole_site, broken):
    rest = {name: data for name, data in whole_site.items() if name != broken}
    with serving(rest) as server, browser.new_context() as context:
        page = context.new_page()
        faults = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(server.url)
        assert_text(page, "#notice", r"The network could not be loaded \(.+\)\. Reload the page to try again\.")
        draw(page, 7)
        assert_text(page, "#notice", "The network could not be loaded")
        assert faults == []


def test_a_built_folder_works_below_any_path_of_a_host(browser, whole_site):
    below = {f"some/where/{name}": data for name, data in whole_site.items()}
    with serving(below) as server, browser.new_context() as context:
        page = open_page(context, f"{server.url}some/where/index.html")
        draw(page, 7)
        assert_reads(page, 7)
        assert page.seen.faults == []


def test_opened_as_a_file_it_says_what_to_do(browser, site, tmp_path):
    build(site, tmp_path / "site")
    with browser.new_context() as context:
        page = context.new_page()
        page.goto((tmp_path / "site" / "index.html").as_uri())
        assert_text(page, "#notice", "only from a web server: run `purecaps demo`")
