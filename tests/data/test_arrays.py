from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from purecaps import data
from purecaps.data import load_arrays
from purecaps.errors import ConfigError, DataError


def pixels(*shape: int) -> NDArray[np.uint8]:
    return np.random.default_rng(7).integers(0, 256, shape, dtype=np.uint8)


def arrays(*image_shape: int) -> dict[str, NDArray[np.generic]]:
    return {
        "train_images": pixels(7, *image_shape),
        "train_labels": np.array([0, 1, 2, 0, 1, 2, 0], dtype=np.int32),
        "test_images": pixels(3, *image_shape),
        "test_labels": np.array([2, 1, 0], dtype=np.uint8),
    }


def npz(folder: Path, contents: dict[str, NDArray[np.generic]]) -> Path:
    path = folder / "toy.npz"
    np.savez(path, **contents)
    return path


def assert_refused(path: Path, *said: str) -> None:
    with pytest.raises(DataError) as caught:
        load_arrays(path)
    for piece in (str(path), *said):
        assert piece in str(caught.value)


def test_npz_and_safetensors_give_the_same_dataset(tmp_path: Path) -> None:
    contents = arrays(3, 5, 9)
    save_file(contents, tmp_path / "toy.safetensors")
    first, second = load_arrays(npz(tmp_path, contents)), load_arrays(tmp_path / "toy.safetensors")
    for dataset in (first, second):
        assert dataset.name == "toy"
        assert dataset.in_shape == (3, 5, 9)
        assert dataset.class_names == ("0", "1", "2")
        assert dataset.train.labels.tolist() == [0, 1, 2, 0, 1, 2, 0]
        assert dataset.test.labels.dtype == torch.int64
        assert np.array_equal(dataset.train.images.numpy(), contents["train_images"])


def test_keras_names_work_too(tmp_path: Path) -> None:
    names = {
        "train_images": "x_train",
        "train_labels": "y_train",
        "test_images": "x_test",
        "test_labels": "y_test",
    }
    contents = {names[key]: value for key, value in arrays(5, 9).items()}
    assert len(load_arrays(npz(tmp_path, contents)).test) == 3


@pytest.mark.parametrize(
    ("shape", "in_shape"),
    [
        ((5, 9), (1, 5, 9)),
        ((5, 9, 1), (1, 5, 9)),
        ((5, 9, 3), (3, 5, 9)),
        ((1, 5, 9), (1, 5, 9)),
        ((3, 5, 9), (3, 5, 9)),
        ((3, 5, 3), (3, 5, 3)),  # both could be channels: the second axis wins
    ],
)
def test_every_layout_becomes_channels_first(
    tmp_path: Path, shape: tuple[int, ...], in_shape: tuple[int, int, int]
) -> None:
    contents = arrays(*shape)
    dataset = load_arrays(npz(tmp_path, contents))
    assert dataset.in_shape == in_shape
    channels_last = len(shape) == 3 and in_shape != shape
    got = dataset.train.images.permute(0, 2, 3, 1) if channels_last else dataset.train.images
    assert np.array_equal(got.reshape(7, *shape).numpy(), contents["train_images"])


def test_images_without_a_channel_axis_of_1_or_3_are_refused(tmp_path: Path) -> None:
    assert_refused(npz(tmp_path, arrays(5, 9, 4)), "train_images", "C = 1 or 3", "[7, 5, 9, 4]")


def test_float_images_are_refused_with_what_was_expected(tmp_path: Path) -> None:
    contents = arrays(5, 9) | {"test_images": np.zeros((3, 5, 9), np.float32)}
    assert_refused(npz(tmp_path, contents), "test_images: expected uint8 pixels", "float32 [3, 5, 9]")


@pytest.mark.parametrize("bad", [np.zeros(7, np.float64), np.zeros((7, 1), np.int64), np.zeros(7, bool)])
def test_labels_that_are_not_a_row_of_integers_are_refused(tmp_path: Path, bad: NDArray[np.generic]) -> None:
    contents = arrays(5, 9) | {"train_labels": bad}
    assert_refused(npz(tmp_path, contents), "train_labels: expected integers [N]", str(list(bad.shape)))


def test_too_few_labels_are_refused_with_both_counts(tmp_path: Path) -> None:
    contents = arrays(5, 9) | {"train_labels": np.array([0, 1, 2])}
    assert_refused(npz(tmp_path, contents), "one for each of 7 images, got 3")


def test_a_single_class_is_refused(tmp_path: Path) -> None:
    zeros = {"train_labels": np.zeros(7, np.int64), "test_labels": np.zeros(3, np.int64)}
    assert_refused(npz(tmp_path, arrays(5, 9) | zeros), "at least two classes, got 1")


def test_missing_arrays_are_named_with_those_that_are_there(tmp_path: Path) -> None:
    contents = arrays(5, 9)
    del contents["test_labels"]
    assert_refused(
        npz(tmp_path, contents),
        "train_images, train_labels, test_images, test_labels",
        "x_train",
        "got test_images, train_images, train_labels",
    )


def test_an_object_array_is_refused_as_a_hidden_pickle(tmp_path: Path) -> None:
    contents = arrays(5, 9) | {"train_labels": np.array([0, "a", None, 1, 2, 3, 4], dtype=object)}
    assert_refused(npz(tmp_path, contents), "hide a pickle", "never loaded")


def test_a_pickle_called_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy.npz"
    path.write_bytes(b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00}\x94\x8c\x01a\x94K\x01s.")
    assert_refused(path, "hide a pickle")


@pytest.mark.parametrize("name", ["toy.npz", "toy.safetensors"])
@pytest.mark.parametrize("keep", [0, 60, 1000])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, keep: int) -> None:
    path = tmp_path / name
    contents = arrays(15, 19)
    np.savez(path, **contents) if name.endswith("npz") else save_file(contents, path)
    path.write_bytes(path.read_bytes()[:keep])
    assert_refused(path, "that can be read")


def test_a_single_array_called_npz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy.npz"
    with path.open("wb") as output:
        np.save(output, pixels(3, 5))
    assert_refused(path, "got a single array")


def test_strings_for_images_are_refused(tmp_path: Path) -> None:
    contents = arrays(5, 9) | {"train_images": np.array(["a", "b"])}
    assert_refused(npz(tmp_path, contents), "train_images: expected an array of numbers")


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "toy.pt"
    path.write_bytes(b"")
    assert_refused(path, "ends in .npz or .safetensors")


def test_load_takes_a_path_but_no_image_size_with_it(tmp_path: Path) -> None:
    path = npz(tmp_path, arrays(5, 9))
    assert len(data.load(path).train) == len(data.load(str(path)).train) == 7
    with pytest.raises(ConfigError, match=re.escape("image_size: expected only with a folder of images, got (5, 9)")):
        data.load(path, image_size=(5, 9))


@pytest.mark.parametrize("which", ["train_labels", "test_labels"])
def test_a_label_far_beyond_all_classes_is_refused_before_they_are_named(tmp_path: Path, which: str) -> None:
    contents = arrays(5, 9)
    contents[which] = contents[which].astype(np.int64)
    contents[which][0] = 20_000_000
    assert_refused(npz(tmp_path, contents), f"{which}: expected class numbers below 65536, got 20000000")


def test_classes_without_a_training_image_are_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    contents = arrays(5, 9) | {"train_labels": np.array([0, 20, 0, 20, 0, 20, 0]), "test_labels": np.array([0, 7, 13])}
    path = npz(tmp_path, contents)
    load_arrays(path)
    assert caplog.messages == [
        f"{path}: 19 of 21 classes have no training image: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 9 more; "
        "test images have 7, 13"
    ]


def test_a_class_that_only_the_test_images_have_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = npz(tmp_path, arrays(5, 9) | {"test_labels": np.array([0, 1, 3])})
    load_arrays(path)
    assert caplog.messages == [f"{path}: 1 of 4 classes have no training image: 3; test images have 3"]


def test_nothing_is_warned_of_where_every_class_is_trained(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    load_arrays(npz(tmp_path, arrays(5, 9) | {"test_labels": np.array([0, 0, 0])}))
    assert not caplog.messages


@pytest.mark.parametrize("text", [b"nope", b"some,columns\n1,2\n", b"(lp0\n."])
def test_a_file_of_another_kind_called_npz_is_told_as_what_it_is(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "toy.npz"
    path.write_bytes(text)
    assert_refused(path, f"expected an .npz file that can be read, got: no archive of arrays, but a file that begins with {text[:8]!r}")  # fmt: skip
