"""How cost grows along an axis."""

import pytest
import torch
from bench_cases import CPU, hurry

from purecaps.errors import UnknownNameError
from purecaps.experiments.bench import Growth, Settings, grow
from purecaps.experiments.bench.contenders import parse
from purecaps.experiments.bench.growth import exponent, points
from purecaps.experiments.bench.plots import plot_growth
from purecaps.experiments.bench.tables import growth_headings, growth_line, growth_title


def test_the_exponent_is_the_slope_in_logarithms():
    assert exponent([(x, 7 * x**1.5) for x in (1, 2, 5, 12)]) == pytest.approx(1.5)
    # Least squares through (0, 0), (1, 1), (2, 1) in powers of two.
    assert exponent([(1, 1), (2, 2), (4, 2)]) == pytest.approx(0.5)
    assert exponent([(3, 4)]) is None


def test_growth_is_fitted_to_what_a_timer_says(monkeypatch):
    """A synthetic timer: 3 ms for 4 images, times 2^1.5 for twice as many."""
    batch = {}

    def clock(call, device, calls):
        return 3 * (batch["now"] / 4) ** 1.5, calls

    def say(text):
        if "batch" in text:
            batch["now"] = int(text.split("batch ")[1])

    hurry(monkeypatch)
    monkeypatch.setattr("purecaps.experiments.bench.timing.milliseconds", clock)
    settings = Settings(CPU, rounds=1, say=say)
    report, (found,) = grow(["batch"], ["pcapsnet1"], "forward", 4, parse(["conv"], "cpu"), settings)
    assert found.values == (4, 8, 16, 32)
    assert [row.batch for row in report.rows] == [4, 8, 16, 32]
    assert found.exponent == pytest.approx(1.5)
    assert found.exponent_of_arithmetic == pytest.approx(1)
    assert growth_line(found) == ["pcapsnet1", "conv", "3.00", "8.49", "24.0", "67.9", "1.50", "1.50", "1.00"]
    assert growth_headings(found)[2:6] == ["4", "8", "16", "32"]
    assert growth_title(found) == "forward: ms by batch"


def test_points_without_a_time_are_left_out_of_the_fit():
    found = Growth("size", "pcapsnet2", "train", "conv", 32, (28, 56, 112), (1.0, 4.0, None), (1, 4, 16))
    assert found.exponent == pytest.approx(2)
    assert growth_line(found)[2:] == ["1.00", "4.00", "-", "2.00", "2.00", "2.00"]
    alone = Growth("size", "pcapsnet2", "train", "naive", 32, (28, 56, 112), (1.0, None, None), (1, 4, 16))
    assert growth_line(alone)[-3:] == ["-", "-", "2.00"]
    assert len(plot_growth([found, alone]).axes[0].lines) == 2


def test_what_was_stopped_before_it_was_measured_leaves_its_place_empty():
    def growth(axis, model):
        return Growth(axis, model, "train", "conv", 32, (1, 2), (1.0, 2.0), (1, 2))

    drawn = plot_growth([growth("batch", "pcapsnet0"), growth("size", "pcapsnet0"), growth("batch", "pcapsnet2")])
    assert [axes.axison for axes in drawn.axes] == [True, True, True, False]


@pytest.mark.parametrize("model", ["pcapsnet0", "pcapsnet2"])
@pytest.mark.parametrize(
    ("axis", "factors", "values"),
    [
        ("batch", (1, 3), [3, 9]),
        ("size", (1, 2), [28, 56]),
        ("capsules", (1, 2), [1, 2]),
        ("depth", (0, 1, 2), [5, 9, 13]),
    ],
)
def test_networks_along_an_axis_begin_with_the_papers_and_can_be_run(model, axis, factors, values):
    found = points(axis, model, 3, factors)
    assert [point.value for point in found] == values
    first, last = (point.subject.build("reference", False) for point in (found[0], found[-1]))
    paper = points("batch", model, 3, (1,))[0]
    assert found[0].multiply_adds == paper.multiply_adds == 3 * first.multiply_adds()
    assert found[-1].multiply_adds > 1.5 * found[0].multiply_adds
    with torch.no_grad():
        assert last(torch.rand(2, *last.in_shape)).shape == (2, 10)


def test_twice_the_capsules_are_four_times_the_work_between_hidden_layers():
    once, twice = (point.subject.build("reference", False) for point in points("capsules", "pcapsnet2", 1, (1, 2)))
    ratios = [
        b.conv.weight.numel() / a.conv.weight.numel()
        for a, b in zip(once.capsule_blocks(), twice.capsule_blocks(), strict=True)
    ]
    assert ratios == [2, 4, 4, 4, 2]


def test_added_layers_keep_the_maps():
    deep = points("depth", "pcapsnet0", 1, (1,))[0].subject.build("reference", False)
    with torch.no_grad():
        maps = [tuple(v.shape[2:4]) for v in deep.features(torch.rand(1, 1, 28, 28))]
    assert maps == [(13, 13), (13, 13), (11, 11), (11, 11), (5, 5), (5, 5), (3, 3), (3, 3), (1, 1)]


def test_an_unknown_axis_is_refused():
    with pytest.raises(
        UnknownNameError, match="unknown axis 'width': did you mean depth\\? known: batch, capsules, depth, size"
    ):
        grow(["width"], ["pcapsnet1"], "train", 4, [], Settings(CPU))
