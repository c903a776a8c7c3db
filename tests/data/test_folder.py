from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from purecaps import data
from purecaps.data import load_folder, load_image
from purecaps.data.image import read_pixels
from purecaps.errors import ConfigError, DataError, UnknownNameError


def paint(path: Path, value: int | tuple[int, ...] = 200, *, mode: str = "L", size: tuple[int, int] = (9, 5)) -> Path:
    """Writes an image of one colour; size is Pillow's (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)
    return path


def two_classes(root: Path, count: int = 3) -> Path:
    for name, value in (("cat", 10), ("dog", 20)):
        for index in range(count):
            paint(root / name / f"{index}.png", value + index)
    return root


def assert_refused(root: Path, *said: str, **options: object) -> None:
    with pytest.raises(DataError) as caught:
        load_folder(root, **options)  # type: ignore[arg-type]
    for piece in said:
        assert piece in str(caught.value)


def test_train_and_test_folders_are_taken_as_they_stand(tmp_path: Path) -> None:
    two_classes(tmp_path / "train", 3)
    two_classes(tmp_path / "test", 2)
    dataset = load_folder(tmp_path)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.in_shape == (1, 5, 9)
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.train.images[:, 0, 0, 0].tolist() == [10, 11, 12, 20, 21, 22]
    assert dataset.test.images[:, 0, 4, 8].tolist() == [10, 11, 20, 21]


def test_the_split_is_stratified_repeatable_and_covers_every_image_once(tmp_path: Path) -> None:
    two_classes(tmp_path, 23)
    first, second = load_folder(tmp_path), load_folder(tmp_path)
    assert first.test.labels.bincount().tolist() == [5, 5]
    assert torch.equal(first.test.images, second.test.images)
    seen = torch.cat([first.train.images, first.test.images])[:, 0, 0, 0].tolist()
    assert sorted(seen) == sorted([*range(10, 33), *range(20, 43)])


def test_the_split_moves_with_the_folder(tmp_path: Path) -> None:
    first = load_folder(two_classes(tmp_path / "here", 11))
    second = load_folder(two_classes(tmp_path / "elsewhere" / "deeper", 11))
    assert torch.equal(first.test.images, second.test.images)


def test_two_images_of_a_class_are_enough_for_both_sides(tmp_path: Path) -> None:
    train, test = load_folder(two_classes(tmp_path, 2))
    assert train.labels.tolist() == test.labels.tolist() == [0, 1]


def test_one_image_of_a_class_cannot_be_split(tmp_path: Path) -> None:
    two_classes(tmp_path, 2)
    paint(tmp_path / "emu" / "only.png")
    assert_refused(tmp_path, str(tmp_path / "emu"), "at least two images", "got 1")


def test_colour_in_one_image_makes_all_rgb_and_channels_overrides_it(tmp_path: Path) -> None:
    two_classes(tmp_path, 2)
    paint(tmp_path / "dog" / "red.png", (255, 0, 0), mode="RGB")
    assert load_folder(tmp_path).in_shape == (3, 5, 9)
    assert load_folder(tmp_path, channels=1).in_shape == (1, 5, 9)


def test_the_first_image_of_another_size_is_named_with_both_sizes(tmp_path: Path) -> None:
    two_classes(tmp_path, 4)
    odd = paint(tmp_path / "dog" / "2.png", size=(11, 6))
    assert_refused(tmp_path, str(odd), "expected height x width of 5 x 9", "got 6 x 11", "image_size=")


def test_image_size_brings_all_images_to_one_size(tmp_path: Path) -> None:
    two_classes(tmp_path, 3)
    paint(tmp_path / "dog" / "wide.png", size=(31, 2))
    assert load_folder(tmp_path, image_size=(13, 7)).in_shape == (1, 13, 7)
    assert load_folder(tmp_path, image_size=9).in_shape == (1, 9, 9)


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    two_classes(tmp_path)
    bad = tmp_path / "dog" / "1.png"
    bad.write_bytes(b"no image at all")
    assert_refused(tmp_path, str(bad), "expected an image that can be read")


def test_a_truncated_image_is_named(tmp_path: Path) -> None:
    two_classes(tmp_path)
    bad = tmp_path / "dog" / "1.png"
    noise = np.random.default_rng(3).integers(0, 256, (5, 9), dtype=np.uint8)
    Image.fromarray(noise).save(bad)
    bad.write_bytes(bad.read_bytes()[:60])
    assert_refused(tmp_path, str(bad), "expected an image that can be read")


def test_hidden_files_and_folders_are_ignored(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / ".git").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "dog" / "Thumbs.db").write_bytes(b"x")
    assert load_folder(tmp_path).class_names == ("cat", "dog")


def test_an_empty_class_folder_is_named(tmp_path: Path) -> None:
    two_classes(tmp_path)
    (tmp_path / "emu").mkdir()
    assert_refused(tmp_path, str(tmp_path / "emu"), "at least one image in the class folder, got none")


def test_a_single_class_is_refused_by_name(tmp_path: Path) -> None:
    paint(tmp_path / "cat" / "0.png")
    assert_refused(tmp_path, "at least two classes, got one: 'cat'", "DIR/train/<class>")


def test_images_without_class_folders_are_refused(tmp_path: Path) -> None:
    paint(tmp_path / "0.png")
    assert_refused(tmp_path, "one sub-folder of images a class, got none", "DIR/<class>/*")


def test_a_folder_inside_a_class_folder_is_refused(tmp_path: Path) -> None:
    two_classes(tmp_path)
    paint(tmp_path / "cat" / "kittens" / "0.png")
    assert_refused(tmp_path, str(tmp_path / "cat" / "kittens"), "got a folder")


def test_a_class_without_a_test_folder_is_named(tmp_path: Path) -> None:
    two_classes(tmp_path / "train")
    two_classes(tmp_path / "test")
    paint(tmp_path / "train" / "emu" / "0.png")
    assert_refused(tmp_path, "each class in both train and test", "'emu'")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"channels": 4}, "channels: expected 1 (grey) or 3 (RGB), got 4"),
        ({"image_size": (28, 0)}, "image_size: expected (height, width), each at least 1, got (28, 0)"),
        ({"image_size": (28,)}, "got (28,)"),
        ({"image_size": 0}, "image_size: expected (height, width), each at least 1, got (0, 0)"),
        ({"image_size": 4.5}, "image_size: expected (height, width), each at least 1, got 4.5"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        load_folder(two_classes(tmp_path), **options)  # type: ignore[arg-type]


def test_load_takes_a_folder_and_its_options(tmp_path: Path) -> None:
    assert data.load(two_classes(tmp_path), image_size=(3, 3), channels=3).in_shape == (3, 3, 3)


def test_load_names_the_path_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "nowhere"))):
        data.load(tmp_path / "nowhere", image_size=(3, 3))


def test_an_unknown_name_gets_the_nearest_and_the_hint_at_paths() -> None:
    with pytest.raises(UnknownNameError, match=r"'mnits': did you mean mnist.*a path to a folder"):
        data.load("mnits")


def test_load_image_resizes_and_goes_grey(tmp_path: Path) -> None:
    path = paint(tmp_path / "red.png", (255, 0, 0), mode="RGB", size=(31, 17))
    image = load_image(path, (1, 28, 27))
    assert image.shape == (1, 28, 27)
    assert image.dtype == torch.uint8
    assert image.unique().tolist() == [76]  # the luma of pure red


def test_load_image_inverts_only_when_asked(tmp_path: Path) -> None:
    path = paint(tmp_path / "a.png", 30)
    assert load_image(path, (1, 5, 9)).unique().tolist() == [30]
    assert load_image(path, (1, 5, 9), invert=True).unique().tolist() == [225]


def test_load_image_keeps_height_and_width_apart(tmp_path: Path) -> None:
    pixels = np.arange(45, dtype=np.uint8).reshape(5, 9)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    assert load_image(tmp_path / "a.png", (1, 5, 9))[0].tolist() == pixels.tolist()


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    path = paint(tmp_path / "a.png", (0, 0, 0, 0), mode="RGBA")
    assert load_image(path, (3, 5, 9)).unique().tolist() == [255]


def test_sixteen_bit_grey_keeps_its_upper_byte(tmp_path: Path) -> None:
    Image.fromarray(np.full((5, 9), 0x4321, dtype=np.uint16)).save(tmp_path / "deep.png")
    assert load_image(tmp_path / "deep.png", (1, 5, 9)).unique().tolist() == [0x43]


def test_exif_orientation_is_followed(tmp_path: Path) -> None:
    picture = Image.new("L", (9, 5), 0)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned by a quarter
    picture.save(tmp_path / "a.jpg", exif=exif)
    assert read_pixels(tmp_path / "a.jpg", channels=1).shape == (1, 9, 5)


def test_float_images_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((5, 9), np.float32)).save(tmp_path / "a.tiff")
    with pytest.raises(DataError, match=r"a\.tiff: expected 8 or 16 bits a value, got Pillow mode F"):
        load_image(tmp_path / "a.tiff", (1, 5, 9))


def test_load_image_refuses_a_model_of_other_channels(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="got 2"):
        load_image(paint(tmp_path / "a.png"), (2, 5, 9))


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "gone.png"))):
        load_image(tmp_path / "gone.png", (1, 5, 9))


def test_a_folder_beside_train_and_test_is_passed_over_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, count in (("train", 3), ("valid", 4), ("test", 2)):
        two_classes(tmp_path / name, count)
    dataset = load_folder(tmp_path)
    assert (len(dataset.train), len(dataset.test)) == (6, 4)
    assert caplog.messages == [
        f"{tmp_path}: only train and test are read, passing over valid; images to validate on are held out of train"
    ]


@pytest.mark.parametrize(("others", "got"), [(["val"], "train, val"), ([], "train"), (["dev"], "dev, train")])
def test_train_without_test_is_told_with_the_names_that_are_understood(
    tmp_path: Path, others: list[str], got: str
) -> None:
    for name in ("train", *others):
        two_classes(tmp_path / name)
    assert_refused(tmp_path, f"expected the folders train and test, got {got}; layouts: DIR/<class>/* or DIR/train/")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    for name in ("train", "plane"):
        for index in range(3):
            paint(tmp_path / name / f"{index}.png")
    assert load_folder(tmp_path).class_names == ("plane", "train")
