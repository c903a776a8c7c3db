"""What a run says of its cost."""

import torch

from purecaps.train import Recipe, RunConfig, train
from purecaps.train.meter import Meter

SHORT = Recipe(steps=6, batch_size=8, log_every=2, checkpoint_every=2)


def meter(*windows):
    made = Meter(torch.device("cpu"))
    for seconds, steps in windows:
        made.add(seconds, steps)
    return made


def test_the_first_window_is_left_out_of_the_pace_where_another_follows():
    assert meter((10.0, 5)).seconds_per_step == 2.0
    several = meter((10.0, 5), (1.0, 5), (2.0, 5))
    assert several.seconds_per_step == 0.3
    assert several.seconds == 13.0
    assert meter().seconds_per_step is None


def test_every_sitting_has_a_first_window():
    again = Meter(torch.device("cpu"))
    again.restore(meter((10.0, 5), (1.0, 5)).as_dict())
    again.add(7.0, 5)
    assert (again.seconds, again.seconds_per_step) == (18.0, 0.2)
    again.add(2.0, 5)
    assert again.seconds_per_step == 0.3


def test_a_checkpoint_of_an_older_version_can_be_gone_on_with():
    old = Meter(torch.device("cpu"))
    old.restore({"seconds": 3.0})
    assert (old.seconds, old.seconds_per_step, old.peak_memory) == (3.0, None, None)


def test_a_run_on_the_cpu_has_a_pace_and_no_memory(digits, tmp_path):
    config = RunConfig("pcapsnet1", "digits", "x", SHORT)
    run = train(config, digits, tmp_path)
    assert 0 < run.seconds_per_step < run.seconds
    assert run.peak_memory is None
    again = train(config, digits, tmp_path)
    assert (again.seconds, again.seconds_per_step) == (run.seconds, run.seconds_per_step), "it was done already"
