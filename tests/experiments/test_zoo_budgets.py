"""Budgets of the zoo's trainings, set by what a step was measured to take."""

import importlib.util
from pathlib import Path

import pytest

from purecaps.experiments.paper.budgets import BUDGETS, Budget
from purecaps.experiments.paper.systems import SYSTEMS

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "apply_zoo_steps.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("apply_zoo_steps", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def row(ms, ready, *, compiled=False, job="zoo/a"):
    return {"job": job, "ms": ms, "ready_s": ready, "compiled": compiled}


def test_every_system_has_a_budget_and_no_other_has():
    assert list(BUDGETS) == [each.name for each in SYSTEMS]


def test_a_budget_is_what_fits_the_seconds_after_getting_ready(script):
    found = script.new_budgets([row(3.0, 10.0)], script.Time(40), {"zoo/a": 10**6})
    assert found == {"zoo/a": Budget(10_000, 3.0)}


def test_no_budget_exceeds_the_recipe_or_falls_below_a_hundred_steps(script):
    assert script.new_budgets([row(0.1, 1.0)], script.Time(40), {"zoo/a": 5000})["zoo/a"].steps == 5000
    assert script.new_budgets([row(100.0, 50.0)], script.Time(40), {"zoo/a": 5000})["zoo/a"].steps == 100


@pytest.mark.parametrize(("ready", "compiled"), [(20.0, True), (38.0, False)])
def test_it_is_compiled_only_where_more_steps_fit_so(script, ready, compiled):
    found = script.new_budgets([row(10.0, 2.0), row(4.0, ready, compiled=True)], script.Time(40), {"zoo/a": 10**6})
    assert found["zoo/a"].compiled is compiled


def test_networks_that_were_not_timed_are_passed_over(script):
    assert (
        script.new_budgets([{"job": "zoo/a", "compiled": False, "why": "out of memory"}], script.Time(40), {"zoo/a": 9})
        == {}
    )


def test_getting_ready_counts_for_no_more_than_is_allowed_for_it(script):
    rows = [row(10.0, 2.0), row(4.0, 60.0, compiled=True)]
    assert script.new_budgets(rows, script.Time(40), {"zoo/a": 10**6}) == {"zoo/a": Budget(3_800, 10.0)}
    found = script.new_budgets(rows, script.Time(40, ready=10.0), {"zoo/a": 10**6})
    assert found == {"zoo/a": Budget(7_500, 4.0, compiled=True)}


def test_slow_networks_have_a_time_of_their_own_compiled_or_not(script):
    rows = [row(80.0, 2.0), row(20.0, 40.0, compiled=True), row(10.0, 2.0, job="zoo/b")]
    whole = {"zoo/a": 10**6, "zoo/b": 10**6}
    found = script.new_budgets(rows, script.Time(22), whole, script.Time(60, ready=20.0))
    assert found == {"zoo/a": Budget(2_000, 20.0, compiled=True), "zoo/b": Budget(2_000, 10.0)}


def test_networks_that_were_not_timed_can_be_given_what_is_estimated(script):
    name = "table1/zoo-dcnet"
    rows = script.estimates(set(BUDGETS) - {name}, 10.0)
    found = script.new_budgets(rows, script.Time(20), {name: 10**6})
    assert found == {name: Budget(script._two_digits(10_000 / BUDGETS[name].ms), BUDGETS[name].ms)}


def test_networks_that_have_no_budget_are_passed_over(script):
    assert script.new_budgets([row(3.0, 10.0, job="table1/pcapsnet0-paper")], script.Time(40), {"zoo/a": 9}) == {}


def test_what_all_take_is_the_sum_over_their_seeds(script):
    some = [each for each in SYSTEMS if each.name in ("table1/zoo-dcnet", "table3/zoo-dcnet")]
    seconds = [each.steps * each.ms / 1e3 + 30 for each in some for _ in range(each.seeds)]
    ready = {(each.name, each.budget.compiled): 30.0 for each in some}
    text = f"{len(seconds)} trainings of {sum(seconds) / 60:.0f} minutes in all, one after the other, the device alone"
    assert script.total_text(some, ready, 1) == text
    assert script.total_text(some, ready, 5).startswith(f"{text}; 5 workers have {sum(seconds) / 300:.0f} each, ")


def test_a_docstrings_time_is_set_and_nothing_else(script):
    source = "Command: a\nTime: about 169 minutes on one H200\nResult: about 3 minutes\n"
    assert script.with_time(source, 42.4) == source.replace("169", "42")


def test_the_written_table_is_the_one_that_is_read(script):
    read = {}
    exec(script.text_of(BUDGETS), {"Budget": Budget}, read)  # an assignment, with its annotation
    assert read["BUDGETS"] == BUDGETS
    assert script.text_of({"zoo/a": Budget(12_000, 3.5, compiled=True)}).splitlines()[1] == (
        '    "zoo/a": Budget(12_000, 3.5, compiled=True),'
    )
