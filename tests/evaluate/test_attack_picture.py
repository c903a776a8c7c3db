"""The picture of an attack."""

import pytest
import torch

from purecaps.errors import ConfigError
from purecaps.evaluate.attacks import AttackResult, Point
from purecaps.evaluate.attacks.picture import ROWS, attack_picture
from purecaps.evaluate.style import save

NAMES = ["ant", "bee", "a cat with a long name"]


def result(sizes: list[float], channels: int = 1) -> AttackResult:
    points = [Point(eps, n=7, correct=max(0, 7 - k), unmoved=0) for k, eps in enumerate([0.0, *sizes])]
    examples = torch.rand(len(points), 3, channels, 9, 11)
    labels = torch.tensor([0, 1, 2])
    predictions = labels.repeat(len(points), 1)
    predictions[-1] = torch.tensor([1, 1, 0])
    return AttackResult(points[0], tuple(points[1:]), examples, labels, predictions)


def texts(figure) -> list[str]:
    panels = [axes for part in figure.subfigs for axes in part.axes]
    return [
        text for axes in panels for text in (axes.get_title("center"), axes.get_xlabel(), axes.get_ylabel()) if text
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_it_shows_each_size_with_true_and_predicted_classes(tmp_path, channels):
    figure = attack_picture(result([0.1, 0.25], channels), NAMES, title="a network [x] under $attack")
    save(figure, tmp_path / "attack.png")
    shown = texts(figure)
    assert [text for text in shown if text in ("clean", "0.1", "0.25")] == ["clean", "0.1", "0.25"]
    assert shown.count("bee") == 1 + 3 + 1  # above its column, below it three times, and once in place of ant
    assert shown.count("a cat wit…") == 1 + 2


def test_of_many_sizes_the_first_and_the_largest_are_among_those_drawn():
    sizes = [round(0.01 * k, 2) for k in range(1, 31)]
    drawn = [
        text for text in texts(attack_picture(result(sizes), NAMES, title="")) if text[0].isdigit() or text == "clean"
    ]
    assert (drawn[0], drawn[-1], len(drawn)) == ("clean", "0.3", 1 + ROWS)


def test_sizes_in_any_order_are_drawn_from_small_to_large():
    figure = attack_picture(result([0.3, 0.0, 0.1]), NAMES, title="")
    (line,) = figure.subfigs[0].axes[0].lines
    assert line.get_xdata().tolist() == [0.0, 0.0, 0.1, 0.3]


def test_names_that_do_not_suffice_are_refused():
    with pytest.raises(ConfigError, match="class_names: expected one for each class seen, up to 2, got 2"):
        attack_picture(result([0.1]), NAMES[:2], title="")
