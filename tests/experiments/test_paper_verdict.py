"""What the numbers say of the paper's: judged by its spread and by ours."""

import pytest

from purecaps.experiments.paper.cells import error_text, sample_text, verdict_cell
from purecaps.experiments.paper.verdict import Published, Sample, judge

PAPER = Published(0.32, 0.03, "Table 1")
BARE = Published(10.03, None, "Table 3")


@pytest.mark.parametrize(
    ("paper", "ours", "word", "text"),
    [
        (PAPER, [0.33, 0.35, 0.31], "inside", "inside"),
        (PAPER, [0.35, 0.35, 0.35], "inside", "inside"),  # at the very edge
        (PAPER, [0.36, 0.36, 0.36], "worse", "worse by 0.04"),
        (PAPER, [0.28, 0.28, 0.28], "better", "better by 0.04"),
        (PAPER, [0.30, 0.60], "worse", "worse by 0.13, not told apart at 95 %"),
        (PAPER, [0.50], "worse", "worse by 0.18, of one seed"),
        (BARE, [10.0, 10.1, 10.2], "inside", "inside our interval (+0.07)"),
        (BARE, [10.03], "inside", "equal"),
        (BARE, [14.9, 15.0, 15.1], "worse", "worse by 4.97"),
    ],
)
def test_a_mean_is_inside_better_or_worse(paper, ours, word, text):
    verdict = judge(paper, ours)
    assert (verdict.word, verdict.text) == (word, text)


def test_of_an_accuracy_more_is_better():
    paper = Published(54.51, None, "Table 4")
    assert judge(paper, [60.0, 60.1, 60.2], accuracy=True).text == "better by 5.59"
    assert judge(paper, [40.0, 40.1, 40.2], accuracy=True).word == "worse"


def test_the_interval_is_students():
    # numpy's mean of 1, 2, 3, 4 is 2.5 with a standard error of 0.6455; t for three degrees of freedom is 3.182.
    assert Sample((1, 2, 3, 4)).half_interval() == pytest.approx(3.182 * 0.6455, rel=1e-3)
    assert Sample((1.0,)).half_interval() == float("inf")
    assert Sample(tuple(float(i % 2) for i in range(40))).half_interval() == pytest.approx(
        2 * 0.5064 / 40**0.5, rel=1e-3
    )


def test_seeds_that_did_not_learn_are_counted_and_what_the_others_reach_is_told():
    assert error_text([0.5, 90.0, 0.7, 89.0]) == "45.05 ± 51.33 (4 seeds); 2 did not learn, the others 0.60 ± 0.14"
    assert error_text([0.5, 0.7]) == "0.60 ± 0.14 (2 seeds)"
    assert error_text([90.0, 90.0]) == "90.00 ± 0.00 (2 seeds)"


def test_cells_say_how_many_seeds_there_were():
    assert sample_text([0.3, 0.4]) == "0.35 ± 0.07 (2 seeds)"
    assert sample_text([0.3]) == "0.30 (1 seed)"
    assert sample_text([]) == "not run yet"
    assert verdict_cell(PAPER, [0.5, 0.5], "underfits").text == "worse by 0.18; underfits"
    assert verdict_cell(PAPER, []).text == "–"
