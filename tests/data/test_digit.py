"""The digit of a photograph as MNIST has it. `tests/demo/test_drawing_preparation.py` holds the steps to the page's."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from purecaps import data
from purecaps.data.digit import find_ink, normalise
from purecaps.data.image import shown_size
from purecaps.errors import ConfigError, DataError

SHAPE = (1, 28, 28)


def save(pixels, path):
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path)
    return path


def page_with(image, times=7, top=60, left=150, size=(300, 400)):
    """Ink 0 to 255 of a digit, enlarged and laid onto an empty page."""
    ink = np.zeros(size)
    large = np.kron(image, np.ones((times, times)))
    ink[top : top + large.shape[0], left : left + large.shape[1]] = large
    return ink


@pytest.mark.parametrize("dark", [True, False])
def test_a_digit_comes_back_from_anywhere_on_a_page(digits, tmp_path, dark):
    for image in digits.test.images[:5, 0].numpy():
        ink = page_with(image)
        found = data.load_digit(save(255 - ink if dark else ink, tmp_path / "page.png"), SHAPE)
        expected = torch.from_numpy(image / image.max() * 255)[None]
        assert found.dtype == torch.uint8
        torch.testing.assert_close(found.double(), expected.double(), atol=1.01, rtol=0)


def test_a_large_photograph_with_uneven_light_and_noise_comes_back_too(digits, tmp_path):
    image = digits.test.images[3, 0].numpy()
    ink = page_with(image, times=30, top=300, left=200, size=(1600, 1200)) / 255
    shade = np.linspace(0, 30, 1600)[:, None] + np.linspace(20, 0, 1200)
    noise = np.random.default_rng(0).normal(0, 9, ink.shape)
    found = data.load_digit(save(225 - 150 * ink - shade + noise, tmp_path / "photo.jpg"), SHAPE)[0].numpy()
    assert np.corrcoef(found.flatten(), image.flatten())[0, 1] > 0.9
    assert (found == 0).mean() > 0.6, "the ground is black"


@pytest.mark.parametrize(("side", "box"), [(28, 20), (32, 23), (63, 45), (5, 4), (1, 1)])
def test_digits_keep_their_share_of_images_of_any_size(side, box):
    ink = np.zeros((50, 70))
    ink[8:48, 11:22] = 0.5
    found = normalise(ink, side)
    rows, columns = np.flatnonzero(found.any(axis=1)), np.flatnonzero(found.any(axis=0))
    assert found.shape == (side, side)
    assert len(rows) == box
    assert abs(rows.mean() - side // 2) <= 0.5
    assert abs(columns.mean() - side // 2) <= 0.5
    assert found.max() == 1


def test_paper_alone_is_refused(tmp_path):
    noise = np.random.default_rng(2).normal(0, 3, (40, 30))
    for name, ground in (("plain.png", 200 + 0 * noise), ("noisy.png", 200 + noise)):
        assert find_ink(ground / 255) is None
        with pytest.raises(DataError, match=rf"{name}: expected a digit that stands out from its ground, found none"):
            data.load_digit(save(ground, tmp_path / name), SHAPE)


@pytest.mark.parametrize("shape", [(3, 28, 28), (1, 28, 32)])
def test_shapes_that_no_digit_of_mnist_has_are_refused(tmp_path, shape):
    with pytest.raises(ConfigError, match=rf"in_shape: expected \(1, S, S\), .* got {re.escape(str(shape))}"):
        data.load_digit(tmp_path / "none.png", shape)


def test_the_size_of_a_picture_is_that_which_is_shown(tmp_path):
    picture, tag = Image.new("L", (9, 5)), Image.Exif()
    picture.save(tmp_path / "wide.png")
    tag[0x0112] = 6  # the camera was held upright
    picture.save(tmp_path / "tall.jpg", exif=tag)
    assert shown_size(tmp_path / "wide.png") == (5, 9)
    assert shown_size(tmp_path / "tall.jpg") == (9, 5)
