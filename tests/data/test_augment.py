from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from purecaps.data import augment
from purecaps.data.augment import Affine, Crop, Cutout, Flip, Shift, Transform, warp
from purecaps.data.random import key
from purecaps.data.transforms import Compose
from purecaps.errors import ConfigError

EVERY_KIND = [
    Shift(2),
    Crop(5, padding=1),
    Flip(),
    Affine(degrees=7, scale=0.07, shear=0.05, shift=1.5),
    Cutout(3),
]


def numbered(batch: int, channels: int, height: int, width: int) -> Tensor:
    """Images in which every pixel has a value of its own, none of them zero."""
    pixels = torch.arange(1, batch * channels * height * width + 1, dtype=torch.float32)
    return pixels.view(batch, channels, height, width)


def dot(batch: int, height: int, width: int) -> Tensor:
    """Images that are black but for the middle pixel."""
    images = torch.zeros(batch, 1, height, width)
    images[:, :, height // 2, width // 2] = 1
    return images


def find_window(padded: Tensor, window: Tensor) -> tuple[int, int]:
    """Where `window` [C, h, w] lies in `padded` [C, H, W]; it must be in exactly one place or all zero."""
    _, height, width = window.shape
    places = [
        (top, left)
        for top in range(padded.shape[1] - height + 1)
        for left in range(padded.shape[2] - width + 1)
        if torch.equal(padded[:, top : top + height, left : left + width], window)
    ]
    assert len(places) == 1
    return places[0]


def warp_by_hand(
    image: list[list[float]], angle: float, scale: float, shear: float, across: float, down: float
) -> list[list[float]]:
    """The forward map is (x, y) -> s R K (x, y) + t about the centre; this solves it pixel by pixel."""
    height, width = len(image), len(image[0])

    def pixel(row: int, column: int) -> float:
        return image[row][column] if 0 <= row < height and 0 <= column < width else 0.0

    # y points down, so that anticlockwise on the screen takes (1, 0) to (cos, -sin).
    a, b = scale * math.cos(angle), scale * (shear * math.cos(angle) + math.sin(angle))
    c, d = -scale * math.sin(angle), scale * (-shear * math.sin(angle) + math.cos(angle))
    determinant = a * d - b * c
    out = []
    for row in range(height):
        out.append([0.0] * width)
        for column in range(width):
            x, y = column - (width - 1) / 2 - across, row - (height - 1) / 2 - down
            source_x = (d * x - b * y) / determinant + (width - 1) / 2
            source_y = (a * y - c * x) / determinant + (height - 1) / 2
            left, top = math.floor(source_x), math.floor(source_y)
            right_part, lower_part = source_x - left, source_y - top
            out[row][column] = (1 - lower_part) * (
                (1 - right_part) * pixel(top, left) + right_part * pixel(top, left + 1)
            ) + lower_part * ((1 - right_part) * pixel(top + 1, left) + right_part * pixel(top + 1, left + 1))
    return out


def still(batch: int) -> dict[str, Tensor]:
    zero = torch.zeros(batch)
    return {"angle": zero, "scale": zero + 1, "shear": zero, "across": zero, "down": zero}


@pytest.mark.parametrize("transform", EVERY_KIND, ids=str)
def test_the_same_key_gives_the_same_images_and_another_key_others(transform: Transform) -> None:
    images = numbered(63, 3, 7, 5)
    kept = images.clone()
    first = transform(images, key(1))
    assert torch.equal(first, transform(images, key(1)))
    assert not torch.equal(first, transform(images, key(2)))
    assert torch.equal(images, kept)
    assert first.dtype == torch.float32
    assert first.shape == (63, 3, *transform.out_size(7, 5))


@pytest.mark.parametrize("transform", EVERY_KIND, ids=str)
def test_images_of_one_batch_get_random_numbers_of_their_own(transform: Transform) -> None:
    same = numbered(1, 1, 7, 5).expand(63, 1, 7, 5)
    assert len(transform(same, key(1)).unique(dim=0)) > 1


@pytest.mark.parametrize("transform", EVERY_KIND, ids=str)
def test_no_value_is_read_back_to_the_host(transform: Transform) -> None:
    # Meta tensors have no values: anything that looked at one would raise.
    out = transform(torch.empty(6, 3, 9, 7, device="meta"), key(0, 1, device="meta"))
    assert out.shape == (6, 3, *transform.out_size(9, 7))


@pytest.mark.parametrize("transform", [t for t in EVERY_KIND if not isinstance(t, Crop)], ids=str)
def test_nothing_happens_at_test(transform: Transform) -> None:
    images = numbered(2, 3, 7, 5)
    assert torch.equal(transform.at_test(images), images)


@pytest.mark.parametrize("transform", EVERY_KIND, ids=str)
@pytest.mark.parametrize("images", [torch.zeros(2, 7, 5), torch.zeros(2, 1, 7, 5, dtype=torch.uint8)])
def test_images_of_another_kind_are_refused(transform: Transform, images: Tensor) -> None:
    with pytest.raises(ConfigError) as error:
        transform(images, key(0))
    assert f"expected float [B, C, H, W], got {images.dtype} {list(images.shape)}" in str(error.value)


def test_shift_moves_by_whole_pixels_and_fills_with_zeros() -> None:
    images = numbered(300, 2, 7, 9)
    shifted = Shift(2)(images, key(4))
    padded = F.pad(images, [2] * 4)
    places = [find_window(padded[i], shifted[i]) for i in range(300)]
    assert set(places) == {(top, left) for top in range(5) for left in range(5)}


def test_shift_moves_every_way_as_often() -> None:
    where = Shift(2)(dot(50_000, 7, 5), key(4)).sum(dim=(0, 1))
    assert where.sum() == 50_000
    moved = where[1:6, :]
    assert (moved - 2000).abs().max() < 4.5 * 2000**0.5


def test_shift_never_wraps_pixels_around() -> None:
    images = torch.zeros(500, 1, 5, 5)
    images[:, :, 0, :] = 1
    shifted = Shift(4)(images, key(0))
    rows = shifted.amax(-1).squeeze(1)  # [B, H]
    assert (rows.sum(-1) <= 1).all()
    assert (rows.sum(-1) == 0).any()
    assert (rows[:, 4] == 1).any()
    assert Shift(9)(torch.ones(50, 1, 5, 5), key(0)).mean() < 0.5


def test_shift_by_none_is_the_image() -> None:
    images = numbered(3, 1, 5, 4)
    assert torch.equal(Shift(0)(images, key(0)), images)


@pytest.mark.parametrize("padding", [0, 1])
def test_crop_takes_every_window_of_the_padded_image(padding: int) -> None:
    images = numbered(300, 3, 7, 6)
    cropped = Crop(5, padding=padding)(images, key(9))
    padded = F.pad(images, [padding] * 4)
    places = {find_window(padded[i], cropped[i]) for i in range(300)}
    assert places == {(top, left) for top in range(3 + 2 * padding) for left in range(2 + 2 * padding)}


def test_crop_is_in_the_centre_at_test() -> None:
    images = numbered(2, 3, 8, 7)
    assert torch.equal(Crop(5).at_test(images), images[:, :, 1:6, 1:6])
    assert torch.equal(Crop(7, padding=4).at_test(images), images[:, :, :7, :])
    assert torch.equal(Crop(9, padding=1).at_test(images), F.pad(images, [1] * 4)[:, :, :9, :])


def test_crop_larger_than_the_image_is_refused() -> None:
    images = numbered(2, 3, 8, 7)
    for attempt in (Crop(10, padding=1).at_test, lambda x: Crop(10, padding=1)(x, key(0))):
        with pytest.raises(ConfigError, match=r"size must be <= 9 for 8x7 images with padding 1, got 10"):
            attempt(images)


def test_flip_mirrors_about_half_of_the_images() -> None:
    images = numbered(2001, 2, 3, 5)
    flipped = Flip()(images, key(3))
    mirrored = (flipped == images.flip(-1)).all(dim=(1, 2, 3))
    untouched = (flipped == images).all(dim=(1, 2, 3))
    assert (mirrored ^ untouched).all()
    assert abs(mirrored.sum().item() - 1000.5) < 4.5 * (2001 * 0.25) ** 0.5


@pytest.mark.parametrize("size", [(28, 28), (5, 7), (63, 32), (123, 96), (1, 1)])
def test_affine_without_ranges_is_the_image(size: tuple[int, int]) -> None:
    images = torch.rand(3, 2, *size)
    torch.testing.assert_close(Affine()(images, key(1)), images, rtol=0, atol=1e-6)


@pytest.mark.parametrize("quarters", [-1, 1, 2])
@pytest.mark.parametrize("side", [5, 8])
def test_warp_by_a_quarter_turn_is_exact(quarters: int, side: int) -> None:
    images = torch.rand(2, 3, side, side)
    turned = warp(images, **still(2) | {"angle": torch.full((2,), quarters * math.pi / 2)})
    torch.testing.assert_close(turned, torch.rot90(images, quarters, (2, 3)), rtol=0, atol=5e-6)


def test_warp_moves_right_and_down_and_fills_with_zeros() -> None:
    images = numbered(1, 2, 5, 6)
    moved = warp(images, **still(1) | {"across": torch.tensor([2.0]), "down": torch.tensor([-1.0])})
    expected = torch.zeros_like(images)
    expected[:, :, :-1, 2:] = images[:, :, 1:, :-2]
    torch.testing.assert_close(moved, expected)


@pytest.mark.parametrize("size", [(5, 7), (6, 4)])
def test_warp_is_bilinear_sampling_of_the_inverse_map(size: tuple[int, int]) -> None:
    values = [(0.3, 1.2, 0.1, 0.7, -1.3), (-2.0, 0.8, -0.4, -0.2, 0.5), (0.0, 1.0, 0.5, 0.0, 0.0)]
    images = torch.rand(len(values), 1, *size)
    names = ("angle", "scale", "shear", "across", "down")
    columns = torch.tensor(values).T
    warped = warp(images, **dict(zip(names, columns, strict=True)))
    for image, out, arguments in zip(images, warped, values, strict=True):
        expected = torch.tensor(warp_by_hand(image[0].tolist(), *arguments))
        torch.testing.assert_close(out[0], expected, rtol=0, atol=1e-5)


def test_affine_stays_within_its_ranges_and_reaches_them() -> None:
    rows, columns = torch.meshgrid(torch.arange(41.0) - 20, torch.arange(41.0) - 20, indexing="ij")
    blob = torch.exp(-((rows**2 + (columns - 10) ** 2) / 8)).expand(400, 1, 41, 41)

    def centre_of_mass(images: Tensor) -> tuple[Tensor, Tensor]:
        mass = images.sum(dim=(1, 2, 3))
        return (images * columns).sum(dim=(1, 2, 3)) / mass, (images * rows).sum(dim=(1, 2, 3)) / mass

    x, y = centre_of_mass(Affine(degrees=20)(blob, key(1)))
    angle = torch.rad2deg(torch.atan2(-y, x))
    assert 19 < angle.max() <= 20.1
    assert -19 > angle.min() >= -20.1
    x, _ = centre_of_mass(Affine(scale=0.2)(blob, key(1)))
    assert 11.9 < x.max() <= 12.05
    assert 8.1 > x.min() >= 7.95
    x, y = centre_of_mass(Affine(shift=3)(blob, key(1)))
    for moved in (x - 10, y):
        assert 2.9 < moved.max() <= 3.05
        assert -2.9 > moved.min() >= -3.05
    x, y = centre_of_mass(Affine(shear=0.3)(blob.transpose(-1, -2), key(1)))
    assert 2.9 < x.max() <= 3.05
    assert -2.9 > x.min() >= -3.05
    torch.testing.assert_close(y, torch.full_like(y, 10.0), rtol=0, atol=0.01)


def test_affine_draws_its_five_numbers_independently(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, Tensor] = {}

    def record(images: Tensor, **arguments: Tensor) -> Tensor:
        drawn.update(arguments)
        return images

    monkeypatch.setattr(augment, "warp", record)
    Affine(degrees=7, scale=0.07, shear=0.05, shift=1.5)(torch.zeros(5003, 1, 1, 1), key(6))
    correlation = torch.corrcoef(torch.stack(list(drawn.values())).double())
    assert correlation.shape == (5, 5)
    assert (correlation - torch.eye(5)).abs().max() < 4.5 / 5003**0.5


@pytest.mark.parametrize("size", [1, 2, 5])
def test_cutout_zeroes_one_square_cut_off_at_the_edges(size: int) -> None:
    out = Cutout(size)(torch.ones(2000, 2, 9, 7), key(1))
    assert torch.equal(out[:, 0], out[:, 1])
    hole = out[:, 0] == 0
    rows, columns = hole.any(2), hole.any(1)
    assert torch.equal(hole, rows[:, :, None] & columns[:, None, :])
    centres = set()
    for image in range(2000):
        spans = []
        for line, side in ((rows[image], 9), (columns[image], 7)):
            inside = line.nonzero().flatten().tolist()
            assert inside == list(range(inside[0], inside[-1] + 1))
            assert len(inside) == size or inside[0] == 0 or inside[-1] == side - 1
            assert len(inside) <= size
            start = inside[0] if inside[0] > 0 else inside[-1] + 1 - size
            spans.append(start + size // 2)
        centres.add(tuple(spans))
    assert centres == {(y, x) for y in range(9) for x in range(7)}


def test_cutout_of_nothing_is_the_image() -> None:
    images = numbered(3, 1, 5, 4)
    assert torch.equal(Cutout(0)(images, key(0)), images)


def test_transforms_in_turn_have_streams_of_their_own() -> None:
    # With the same numbers twice, every image would move by an even number of pixels.
    moved = Compose((Shift(1), Shift(1)))(dot(500, 9, 9), key(2)).sum(dim=(0, 1, 2))
    assert moved[3] > 0
    assert moved[5] > 0
    assert moved.sum() == 500


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_graph_transforms_each_step_as_the_cpu_does() -> None:
    images = torch.rand(63, 3, 11, 9)
    moving = Compose((Shift(2), Crop(8), Flip(), Cutout(3)))
    every = Compose((*moving.transforms, Affine(degrees=7, scale=0.07, shear=0.05, shift=1.5)))
    on_device, step = images.cuda(), torch.zeros((), dtype=torch.int64, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        every(on_device, key(5, step))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        moved, warped = moving(on_device, key(5, step)), every(on_device, key(5, step))
    for number in (0, 7):
        step.fill_(number)
        graph.replay()
        assert torch.equal(moved.cpu(), moving(images, key(5, number)))
        torch.testing.assert_close(warped.cpu(), every(images, key(5, number)), rtol=0, atol=1e-4)
