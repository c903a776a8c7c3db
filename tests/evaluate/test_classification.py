from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError, DataError
from purecaps.evaluate import Result, evaluate

# Seven images, three classes; the mistakes are at 1 (by 0.2), 4 (by 0.6) and 5 (by 0.4).
SCORES = torch.tensor(
    [
        [0.9, 0.1, 0.2],
        [0.5, 0.7, 0.1],
        [0.2, 0.8, 0.3],
        [0.1, 0.6, 0.2],
        [0.8, 0.1, 0.2],
        [0.6, 0.4, 0.2],
        [0.0, 0.3, 0.9],
    ]
)
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 2])


@pytest.fixture
def result() -> Result:
    return Result(SCORES, LABELS)


def test_errors_are_counted_as_by_hand(result: Result) -> None:
    assert len(result) == 7
    assert result.predictions.tolist() == [0, 1, 1, 1, 0, 0, 2]
    assert result.errors == 3
    assert result.error_rate == pytest.approx(100 * 3 / 7)


def test_confusion_has_true_classes_in_rows(result: Result) -> None:
    assert result.confusion.dtype == torch.int64
    assert result.confusion.tolist() == [[1, 1, 0], [0, 2, 0], [2, 0, 1]]


def test_per_class_names_what_a_class_is_taken_for(result: Result) -> None:
    rows = result.per_class(["ant", "bee", "cat"])
    assert [(row.name, row.n, row.errors, row.most_confused_with) for row in rows] == [
        ("ant", 2, 1, "bee"),
        ("bee", 2, 0, None),
        ("cat", 3, 2, "ant"),
    ]
    assert [row.error_rate for row in rows] == pytest.approx([50.0, 0.0, 100 * 2 / 3])


def test_a_class_without_images_has_no_rate_rather_than_nan() -> None:
    row = Result(torch.tensor([[1.0, 0.0, 0.0]]), torch.tensor([0])).per_class()[2]
    assert (row.name, row.n, row.errors, row.error_rate) == ("2", 0, 0, None)


def test_most_confused_are_ordered_by_margin(result: Result) -> None:
    assert result.most_confused(2) == [4, 5]
    assert result.most_confused(99) == [4, 5, 1]
    assert result.most_confused(0) == []


def test_equal_scores_go_to_the_first_class() -> None:
    result = Result(torch.zeros(2, 5), torch.tensor([0, 3]))
    assert result.predictions.tolist() == [0, 0]
    assert result.most_confused(5) == [1]


@pytest.mark.parametrize(
    ("errors", "n", "low", "high"),
    # Roots p of (errors / n - p)^2 = z^2 p (1 - p) / n by bisection in 50 digits, not by the closed form.
    [
        (0, 10, 0.0, 27.753279986289),
        (3, 7, 15.821985525147, 74.954163547234),
        (74, 10_000, 0.589908635958, 0.927922883521),
    ],
)
def test_interval_is_wilsons(errors: int, n: int, low: float, high: float) -> None:
    labels = torch.zeros(n, dtype=torch.int64)
    labels[:errors] = 1
    result = Result(torch.tensor([1.0, 0.0]).expand(n, 2), labels)
    assert result.interval() == pytest.approx((low, high), abs=1e-9)


def test_interval_stays_within_0_and_100() -> None:
    all_wrong = Result(torch.tensor([[0.0, 1.0]]).expand(5, 2), torch.zeros(5, dtype=torch.int64))
    low, high = all_wrong.interval()
    assert 0.0 < low < 100.0
    assert high == 100.0


def test_as_dict_survives_json_and_holds_no_scores(result: Result) -> None:
    numbers = result.as_dict()
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert numbers["confusion"] == [[1, 1, 0], [0, 2, 0], [2, 0, 1]]
    assert "scores" not in numbers


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_non_finite_scores_are_refused_with_how_many_and_where(bad: float) -> None:
    scores = SCORES.clone()
    scores[2, 1] = scores[5, 0] = scores[5, 2] = bad
    with pytest.raises(DataError, match=r"non-finite ones for 2 of 7 images, the first at index 2"):
        Result(scores, LABELS)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (SCORES, LABELS + 1, r"labels: expected 0 to 2 for 3 scores an image, got 1 to 3"),
        (SCORES, LABELS[:5], r"labels: expected \[7\], one for each row of scores, got \[5\]"),
        (SCORES, LABELS.float(), r"labels: expected torch.int64, got torch.float32"),
        (SCORES[0], LABELS, r"scores: expected \[N, K\] with N, K > 0, got \[3\]"),
        (SCORES[:0], LABELS[:0], r"scores: expected \[N, K\] with N, K > 0, got \[0, 3\]"),
    ],
)
def test_what_does_not_fit_is_refused(scores: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        Result(scores, labels)


def test_a_wrong_number_of_names_is_refused(result: Result) -> None:
    with pytest.raises(ConfigError, match="class_names: expected 3, one for each class scored, got 2"):
        result.per_class(["ant", "bee"])


class Lookup(nn.Module):
    """Scores an image by its first pixel; notes the mode it was called in."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm2d(1)
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.modes.append((self.training, torch.is_inference_mode_enabled()))
        return SCORES[images[:, 0, 0, 0].long()]


def batches_of(size: int) -> Iterator[tuple[Tensor, Tensor]]:
    images = torch.arange(7.0).view(7, 1, 1, 1)
    for start in range(0, 7, size):
        yield images[start : start + size], LABELS[start : start + size]


@pytest.mark.parametrize("size", [1, 3, 7])
def test_evaluate_joins_batches_of_any_size(size: int) -> None:
    result = evaluate(Lookup(), batches_of(size), num_classes=3)
    assert torch.equal(result.scores, SCORES)
    assert torch.equal(result.labels, LABELS)
    assert not result.scores.is_inference()


def test_evaluate_tells_how_many_images_each_batch_had() -> None:
    told: list[int] = []
    evaluate(Lookup(), batches_of(3), num_classes=3, progress=told.append)
    assert told == [3, 3, 1]


def test_evaluate_runs_in_eval_mode_and_restores_each_modules_mode() -> None:
    model = Lookup().train()
    model.frozen.eval()
    evaluate(model, batches_of(4), num_classes=3)
    assert model.modes == [(False, True), (False, True)]
    assert model.training
    assert not model.frozen.training


def test_evaluate_restores_the_mode_after_a_fault() -> None:
    model = Lookup().train()
    with pytest.raises(ConfigError, match=r"num_classes: expected scores \[4, 10\] from the model, got \[4, 3\]"):
        evaluate(model, batches_of(4), num_classes=10)
    assert model.training


def test_evaluate_of_nothing_is_an_error() -> None:
    with pytest.raises(DataError, match="batches: expected at least one batch of images, got none"):
        evaluate(Lookup(), [], num_classes=3)


def test_evaluate_keeps_half_precision_scores_as_float32() -> None:
    class Half(Lookup):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images).bfloat16()

    assert evaluate(Half(), batches_of(4), num_classes=3).scores.dtype == torch.float32
