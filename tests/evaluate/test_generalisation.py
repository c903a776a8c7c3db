"""The gap between training and held-out images, from a run's metrics."""

import numpy as np
import pytest

from purecaps.errors import ConfigError
from purecaps.evaluate.generalisation import GapCurves, curves_of, gap_picture
from purecaps.evaluate.style import save
from purecaps.train import Recipe, RunConfig, train

ROWS = [
    {"step": 1, "loss": 9.0, "error": 90.0},
    {"step": 5, "train_loss": 0.5, "val_loss": 0.8, "train_error": 4.0, "val_error": 7.0},
    {"step": 9, "train_loss": 0.25, "val_loss": 0.75, "train_error": 0.0, "val_error": 3.0},
]


def test_the_gap_is_held_out_less_trained_on_at_the_end():
    curves = GapCurves([curves_of(ROWS, 4)])
    assert list(curves.steps) == [5, 9]
    assert curves.final("loss") == [0.5]
    assert curves.final("error") == [3.0]


def test_curves_are_means_over_seeds():
    one = curves_of(ROWS, 0)
    other = {**one, "val_loss": [0.2, 0.25]}
    np.testing.assert_allclose(GapCurves([one, other]).mean("val_loss"), [0.5, 0.5])
    with pytest.raises(ConfigError, match="seeds: expected at least one, all looked at after the same steps"):
        GapCurves([one, {**one, "step": [5, 8]}])


def test_each_seed_of_a_real_run_has_its_curves(digits, tmp_path):
    recipe = Recipe(steps=6, batch_size=16, val_size=20, probe_size=40, log_every=2, eval_every=2, checkpoint_every=6)
    history = train(RunConfig("pcapsnet1", "digits", "x", recipe, seeds=2), digits, tmp_path).history
    for seed in (0, 1):
        curves = curves_of(history, seed)
        assert curves["step"] == [2, 4, 6]
        assert curves["train_loss"] == [row[f"train_loss/{seed}"] for row in history]
        expected = history[-1][f"val_error/{seed}"] - history[-1][f"train_error/{seed}"]
        assert GapCurves([curves]).final("error") == [pytest.approx(expected)]


def test_without_a_probe_there_are_held_out_curves_alone():
    rows = [{key: value for key, value in row.items() if not key.startswith("train")} for row in ROWS]
    assert curves_of(rows, 0) == {"step": [5, 9], "val_loss": [0.8, 0.75], "val_error": [7.0, 3.0]}


def test_the_picture_shows_both_networks_in_both_measures(tmp_path):
    curves = GapCurves([curves_of(ROWS, 0)])
    figure = gap_picture({"capsules": curves, "plain": curves})
    loss, error, gap_in_loss, gap_in_error = figure.axes
    assert [line.get_label() for line in loss.lines] == [
        "capsules, held out",
        "capsules, trained on",
        "plain, held out",
        "plain, trained on",
    ]
    np.testing.assert_allclose(error.lines[1].get_ydata(), [4.0, 0.0])  # zero errors have a place too
    for measure, above, below in (("loss", loss, gap_in_loss), ("error", error, gap_in_error)):
        held_out, trained_on = (np.asarray(line.get_ydata()) for line in above.lines[:2])
        np.testing.assert_allclose(below.lines[0].get_ydata(), held_out - trained_on, err_msg=measure)
    save(figure, tmp_path / "gap.png")
    assert (tmp_path / "gap.png").stat().st_size > 5000


def test_a_run_that_watched_nothing_is_refused():
    with pytest.raises(ConfigError, match="history: expected rows with val_loss, got none"):
        curves_of(ROWS[:1], 0)
