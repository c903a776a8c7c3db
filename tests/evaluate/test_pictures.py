from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import nn

from purecaps import files
from purecaps.errors import ConfigError
from purecaps.evaluate import Result, pictures
from purecaps.models import create_model


def result_of(k: int, errors: int = 5, n: int | None = None) -> Result:
    """The first `errors` images are taken for the class after their own, the later the less clearly."""
    n = 3 * k if n is None else n
    labels = torch.arange(n) % k
    scores = torch.zeros(n, k)
    scores[torch.arange(n), labels] = 0.5
    wrong = torch.arange(errors)
    scores[wrong, (labels[wrong] + 1) % k] = 0.9 - 0.01 * wrong
    return Result(scores, labels)


def texts(figure: Figure) -> list[str]:
    found = [text.get_text() for axes in figure.axes for text in axes.texts]
    ticks = [tick.get_text() for axes in figure.axes for tick in axes.get_xticklabels()]
    return found + ticks


def pixels(figure: Figure, path: Path) -> np.ndarray:
    pictures.save(figure, path, dpi=60)
    with Image.open(path) as image:
        return np.asarray(image.convert("RGB"))


@pytest.mark.parametrize("k", [2, 7, 20])
def test_confusion_writes_every_count_for_up_to_20_classes(k: int) -> None:
    counts = [text.get_text() for text in pictures.confusion_matrix(result_of(k)).axes[0].texts]
    expected = [str(int(count)) for count in result_of(k).confusion.flatten() if count]
    assert counts == expected


@pytest.mark.parametrize("k", [21, 100, 123])
def test_confusion_of_many_classes_has_a_key_and_no_counts(k: int, tmp_path: Path) -> None:
    figure = pictures.confusion_matrix(result_of(k), [f"a rather long class name {i}" for i in range(k)])
    axes = figure.axes[0]
    assert not axes.texts
    assert [child.get_title(loc="left") for child in axes.child_axes] == ["mistakes"]
    assert pixels(figure, tmp_path / "many.png").std() > 0


def test_confusion_shows_one_mistake_beside_a_thousand_right_answers() -> None:
    axes = pictures.confusion_matrix(result_of(3, errors=1, n=3000)).axes[0]
    mistakes, diagonal = (np.asarray(image.get_array()) for image in axes.images)
    assert mistakes[0, 1, 3] == 1.0
    assert (np.diagonal(mistakes[..., 3]) == 0).all()
    assert (np.diagonal(diagonal[..., 3]) < 0.5).all()


def test_confusion_without_mistakes_can_be_drawn(tmp_path: Path) -> None:
    pictures.save(pictures.confusion_matrix(result_of(3, errors=0)), tmp_path / "right.png")


def test_names_are_drawn_as_they_are_never_as_mathematics(tmp_path: Path) -> None:
    names = [r"$\frac{1$", "x_1^2", "犬\n\x00", "\udcff", "a" * 40]
    figure = pictures.confusion_matrix(result_of(5), names)
    pictures.save(figure, tmp_path / "names.png")
    pictures.save(figure, tmp_path / "names.svg")
    assert texts(figure)[-5:] == [r"$\frac{1$", "x_1^2", "犬", "?", "a" * 15 + "…"]


@pytest.mark.parametrize(("channels", "k"), [(1, 5), (3, 4), (2, 1), (4, 3)])
def test_worst_images_are_captioned_with_both_classes_and_scores(channels: int, k: int, tmp_path: Path) -> None:
    images = torch.arange(k * channels * 9 * 7).remainder(256).to(torch.uint8).view(k, channels, 9, 7)
    figure = pictures.worst_images(images, result_of(6), ["a", "b", "c", "d", "e", "f"])
    assert texts(figure)[:2] == ["a → b", "0.50 → 0.90"]
    assert sum("→" in text for text in texts(figure)) == 2 * k
    pictures.save(figure, tmp_path / "worst.png")


def test_worst_images_wants_no_more_images_than_mistakes() -> None:
    with pytest.raises(ConfigError, match="images: expected at most 5, one for each mistake, got 6"):
        pictures.worst_images(torch.zeros(6, 1, 5, 5, dtype=torch.uint8), result_of(4))


def test_worst_images_of_a_faultless_model_says_so() -> None:
    figure = pictures.worst_images(torch.zeros(0, 1, 5, 5, dtype=torch.uint8), result_of(4, errors=0))
    assert [text.get_text() for text in figure.texts] == ["no mistakes"]


def history(n: int) -> list[dict[str, float]]:
    rows = []
    for i in range(1, n + 1):
        row = {"step": 10.0 * i, "loss": 2.0 / i, "error": 90.0 / i, "lr": 0.01, "images_per_s": 5000.0}
        if i % 5 == 0:
            row |= {"val_error": 80.0 / i, "val_loss": 1.5 / i}
        rows.append(row)
    return rows


def test_curves_have_a_panel_each_for_error_loss_and_learning_rate() -> None:
    error, loss, rate = pictures.training_curves(history(63), test_error=1.3).axes
    assert [axes.get_title(loc="left") for axes in (error, loss, rate)] == ["error, %", "loss", "learning rate"]
    assert [line.get_label() for line in error.lines] == ["training", "validation", "test"]
    assert [axes.get_yscale() for axes in (error, loss, rate)] == ["log", "log", "linear"]
    np.testing.assert_allclose(error.lines[1].get_xdata(), np.arange(50.0, 630.0, 50.0))


def test_long_runs_are_thinned_to_means() -> None:
    line = pictures.training_curves(history(1001)).axes[0].lines[0]
    assert len(line.get_xdata()) <= pictures.CURVE_POINTS
    assert line.get_ydata()[0] == pytest.approx(sum(90.0 / i for i in range(1, 7)) / 6)
    # The last point is the mean of what is left over, not of a full window.
    assert line.get_ydata()[-1] == pytest.approx(sum(90.0 / i for i in range(997, 1002)) / 5)


def test_curves_keep_zero_errors_in_sight_and_leave_out_nan() -> None:
    rows: list[dict[str, float]] = [
        {"step": 1, "error": 50.0, "loss": float("nan")},
        {"step": 2, "error": 0.0, "loss": 1.0},
        {"step": 3, "error": 0.1, "loss": 2.0},
    ]
    error, loss = pictures.training_curves(rows).axes
    low, high = error.get_ylim()
    assert low < 0.0 < 50.0 < high
    assert loss.lines[0].get_xdata().tolist() == [2, 3]


def test_a_step_logged_again_after_a_resume_counts_once() -> None:
    rows = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.5}, {"step": 2, "loss": 2.0}]
    line = pictures.training_curves(rows).axes[0].lines[0]
    assert line.get_ydata().tolist() == [3.0, 2.0]


@pytest.mark.parametrize("rows", [[], [{"step": 1, "loss": 2.0}], [{"step": 1, "lr": 0.0}]])
def test_short_histories_can_be_drawn(rows: list[dict[str, float]], tmp_path: Path) -> None:
    pictures.save(pictures.training_curves(rows), tmp_path / "short.png")


def panel_images(figure: Figure) -> list[np.ndarray]:
    return [np.asarray(image.get_array()) for image in figure.axes[0].images[:-1]]  # the last is the key


def test_filters_of_the_papers_first_layer_are_a_9_by_16_matrix() -> None:
    weight = torch.zeros(3, 3, 1, 1, 1, 1, 16)
    weight[0, 1, 0, 0, 0, 0, 5] = 2.0
    weight[2, 2, 0, 0, 0, 0, 15] = -1.0
    (matrix,) = panel_images(pictures.filters([weight]))
    assert matrix.shape == (9, 16, 4)
    assert matrix[1, 5, 3] == 1.0
    assert matrix[8, 15, 3] == 0.5  # half the largest weight, on one scale for both signs
    assert matrix[1, 5, 0] > matrix[1, 5, 2]  # orange above zero
    assert matrix[8, 15, 0] < matrix[8, 15, 2]  # blue below
    assert (matrix[..., 3] > 0).sum() == 2


def test_wide_layers_are_wrapped_between_kernels_and_say_so() -> None:
    figure = pictures.filters([torch.randn(3, 3, 1, 10, 1, 8, 3)])
    assert [matrix.shape[:2] for matrix in panel_images(figure)] == [(9, 48)] * 5
    assert any("9×240, in 5 strips" in text for text in texts(figure))


def test_very_wide_layers_are_shown_by_means_and_say_so() -> None:
    weight = torch.randn(3, 3, 4, 8, 1, 16, 8)
    figure = pictures.filters([weight])
    (matrix,) = panel_images(figure)
    means = weight.mean(dim=(2, 5)).view(9, 64)
    np.testing.assert_allclose(matrix[..., 3], means.abs() / means.abs().max(), atol=1e-6)
    assert any("9×4,096, mean over 4 input capsules and 16 rows n" in text for text in texts(figure))


def test_layers_too_wide_even_so_are_cut_and_say_so() -> None:
    figure = pictures.filters([torch.randn(1, 1, 1, 123, 1, 2, 4)])
    assert sum(matrix.shape[1] for matrix in panel_images(figure)) == 320
    assert any("first 320 of 492 columns" in text for text in texts(figure))


def test_filters_of_odd_kernels_and_of_all_zero_weights_can_be_drawn(tmp_path: Path) -> None:
    weights = [torch.zeros(5, 1, 2, 1, 2, 3, 7), torch.ones(1, 1, 1, 1, 1, 1, 1), torch.randn(9, 9, 1, 1, 1, 1, 5)]
    pictures.save(pictures.filters(weights), tmp_path / "odd.png")
    pictures.save(pictures.filters([]), tmp_path / "none.png")


def test_filters_refuse_what_is_no_capsule_kernel() -> None:
    with pytest.raises(ConfigError, match=r"weights\[1\]: expected \[kh, kw, C, O, g, n, p\], got \[3, 3, 8\]"):
        pictures.filters([torch.zeros(1, 1, 1, 1, 1, 1, 1), torch.zeros(3, 3, 8)])


def test_filter_weights_are_the_kernels_of_a_papers_network() -> None:
    weights = pictures.filter_weights(create_model("pcapsnet2"))
    assert [tuple(weight.shape) for weight in weights] == [
        (3, 3, 1, 1, 1, 1, 16),
        (3, 3, 1, 1, 1, 4, 8),
        (3, 3, 1, 1, 1, 8, 4),
        (3, 3, 1, 1, 1, 4, 8),
        (3, 3, 1, 10, 1, 8, 4),
    ]


def test_models_without_blocks_have_no_filters() -> None:
    assert pictures.filter_weights(nn.Linear(3, 2)) == []


def test_save_replaces_the_file_only_when_all_of_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"old")

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        pictures.save(pictures.confusion_matrix(result_of(3)), path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_save_refuses_an_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"path: expected a file name ending in .png, .svg or .pdf, got '.*\.bmp'"):
        pictures.save(pictures.training_curves([]), tmp_path / "x.bmp")
    assert not list(tmp_path.iterdir())


def test_figures_are_freed_once_let_go(tmp_path: Path) -> None:
    figure = pictures.confusion_matrix(result_of(3))
    pictures.save(figure, tmp_path / "x.png")
    watch = weakref.ref(figure)
    del figure
    gc.collect()
    assert watch() is None


def test_pyplot_is_never_imported() -> None:
    code = "import purecaps.evaluate, sys; sys.exit('matplotlib.pyplot' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
