"""The page's own preprocessing, run in the browser: MNIST's digits come out as they went in."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from demo_serving import serving

from purecaps.data import digit

NORMALISE = """async ([width, height, values]) => {
  const { normalise } = await import("./preprocess.js");
  const image = normalise({ width, height, data: Float32Array.from(values) });
  return image && Array.from(image);
}"""
FIND_INK = """async ([width, height, values]) => {
  const { findInk } = await import("./paper.js");
  const ink = findInk({ width, height, data: Float32Array.from(values) });
  return ink && Array.from(ink.data);
}"""
READ_TENSORS = """async (path) => {
  const { readTensors } = await import("./safetensors.js");
  const tensors = readTensors(await (await fetch(path)).arrayBuffer());
  return [...tensors].map(([name, { shape, data }]) => [name, shape, data.reduce((a, b) => a + b, 0)]);
}"""


@pytest.fixture(scope="module")
def page(browser, site):
    with serving(site) as server, browser.new_context() as context:
        page = context.new_page()
        page.goto(server.url + "manifest.json")  # the origin of the modules, without the page
        yield page


def run(page, program: str, image: np.ndarray) -> np.ndarray | None:
    height, width = image.shape
    found = page.evaluate(program, [width, height, image.flatten().tolist()])
    return None if found is None else np.array(found, dtype=np.float32)


def normalise(page, image: np.ndarray) -> np.ndarray | None:
    found = run(page, NORMALISE, image)
    return None if found is None else found.reshape(28, 28)


def centre_of_mass(image: np.ndarray) -> np.ndarray:
    return np.array([(image.sum(axis=1 - axis) * np.arange(28)).sum() / image.sum() for axis in (0, 1)])


def test_mnist_digits_come_out_as_they_went_in(page, digits):
    for image in digits.test.images[:20, 0].numpy() / 255:
        np.testing.assert_allclose(normalise(page, image), image / image.max(), atol=1e-6)


@pytest.mark.parametrize("times", [2, 7])
def test_enlarged_moved_digits_come_back(page, digits, times):
    image = digits.test.images[11, 0].numpy() / 255
    large = np.kron(image, np.ones((times, times)))
    moved = np.pad(large, ((0, 31), (17, 5)))
    np.testing.assert_allclose(normalise(page, moved), image / image.max(), atol=1e-5)


@pytest.mark.parametrize("shape", [(63, 11), (11, 63), (123, 45), (5, 3), (1, 1)])
def test_any_shape_fits_twenty_pixels_with_its_mass_in_the_middle(page, shape):
    ink = np.zeros((shape[0] + 9, shape[1] + 14))
    ink[4 : 4 + shape[0], 9 : 9 + shape[1]] = np.random.default_rng(3).uniform(0.2, 0.7, shape)
    found = normalise(page, ink)
    rows, columns = np.flatnonzero(found.sum(axis=1)), np.flatnonzero(found.sum(axis=0))
    sides = (np.ptp(rows) + 1, np.ptp(columns) + 1)
    assert max(sides) == 20
    assert min(sides) == max(1, round(20 * min(shape) / max(shape)))
    assert found.max() == pytest.approx(1)
    assert np.abs(centre_of_mass(found) - 14).max() <= 0.51


def test_ink_far_from_its_centre_of_mass_is_not_cut_off(page):
    ink = np.zeros((60, 60))
    ink[:6, :] = 1
    ink[:, 0] = 0.3
    found = normalise(page, ink)
    assert (found > 0).any(axis=1).sum() == 20


def test_no_ink_is_nothing(page):
    assert normalise(page, np.zeros((9, 13))) is None


def test_a_drawing_keeps_its_grey_levels_whatever_its_ground(page, digits):
    image = digits.test.images[4, 0].numpy() / 255
    for shown in (image, 1 - image, 0.2 + 0.5 * image, 0.9 - 0.5 * image):
        np.testing.assert_allclose(run(page, FIND_INK, shown).reshape(28, 28), image / image.max(), atol=1e-5)


def test_light_may_fall_off_to_one_side(page, digits):
    image = np.kron(digits.test.images[4, 0].numpy() / 255, np.ones((4, 4)))
    shade = np.linspace(0, 0.2, 112)[:, None] + np.linspace(0.1, 0, 112)
    noise = np.random.default_rng(1).normal(0, 0.01, image.shape)
    ink = run(page, FIND_INK, 0.9 - 0.4 * image - shade + noise).reshape(112, 112)
    assert ink[image == 0].max() == 0
    assert ink[image > 0.9].min() > 0.9


@pytest.mark.parametrize("ground", [0.0, 0.37, 1.0])
def test_paper_alone_has_no_ink(page, ground):
    noise = np.random.default_rng(2).normal(0, 0.01, (40, 30))
    assert run(page, FIND_INK, ground + 0 * noise) is None
    assert run(page, FIND_INK, ground + noise) is None


def drawings(digits) -> list[np.ndarray]:
    """Grey images of all kinds: as they are, on light ground, wide, tall, in uneven light, of one pixel, of none."""
    image = digits.test.images[4, 0].numpy() / 255
    shade = np.linspace(0, 0.2, 123)[:, None] + np.linspace(0.1, 0, 84)
    noise = np.random.default_rng(1).normal(0, 0.01, shade.shape)
    photograph = 0.9 - 0.4 * np.pad(np.kron(image, np.ones((3, 3))), ((9, 30), (0, 0))) - shade
    dot, bar = np.zeros((9, 13)), np.ones((63, 45))
    dot[2, 7], bar[5:60, 20:23] = 1, 0.3
    return [image, 0.9 - 0.5 * image, np.pad(1 - image, ((5, 63), (123, 5)), constant_values=1), photograph,
            photograph + noise, dot, bar, np.full((5, 7), 0.37)]  # fmt: skip


def test_python_finds_the_same_ink_and_makes_the_same_image_of_it(page, digits):
    for drawing in drawings(digits):
        ink = run(page, FIND_INK, drawing)
        found = digit.find_ink(drawing)
        assert (found is None) == (ink is None)
        if found is not None:
            np.testing.assert_allclose(found.flatten(), ink, atol=2e-6)
            kept = np.round(255 * found) / 255  # as the pad keeps it; else 1e-8 of ink would decide on the box
            np.testing.assert_allclose(digit.normalise(kept), normalise(page, kept), atol=2e-6)


def test_weights_are_read_from_safetensors(page):
    from purecaps.models import create_model

    found = page.evaluate(READ_TENSORS, "networks/pcapsnet1.safetensors")
    expected = create_model("pcapsnet1", pretrained=True).state_dict()
    assert {name: tuple(shape) for name, shape, _ in found} == {name: tuple(w.shape) for name, w in expected.items()}
    for name, _, total in found:
        assert total == pytest.approx(float(expected[name].sum(dtype=torch.float64)), abs=1e-4)
