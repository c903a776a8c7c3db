"""benchmarks/train_step.py: a variant that computes something else is not timed."""

import importlib.util
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "train_step.py"
RIGHT = [0.8 - 0.01 * step for step in range(100)]


@pytest.fixture
def script(monkeypatch):
    """The script with steps that only give losses, by their variant, and a device that does nothing."""
    spec = importlib.util.spec_from_file_location("train_step", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.factors, module.timed = {}, []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: 2**20)
    monkeypatch.setattr(module, "make_state", lambda *given: None)
    monkeypatch.setattr(module, "make_loader", lambda *given: None)
    monkeypatch.setattr(module, "make_stepper", lambda variant, *given: variant)
    monkeypatch.setattr(module, "first_losses", lambda variant: [module.factors.get(variant, 1) * x for x in RIGHT])
    monkeypatch.setattr(module, "milliseconds", lambda variant, windows: module.timed.append(variant) or [0.5, 0.7])
    return module


def rows(script, *variants, precision="tf32"):
    recipe = script.recipe_for("pcapsnet2").replace(precision=precision)
    return {row["variant"]: row for row in script.rows_of("pcapsnet2", variants, recipe, 1)}


def test_ours_is_held_against_the_reduction_wherever_it_stands_and_if_it_is_not_asked_for(script):
    script.factors = {"triton": 1.2}
    for variants in (("triton",), ("triton", "conv")):
        found = rows(script, *variants)
        assert list(found) == ["conv", "triton"]
        assert found["conv"]["off"] == 0
        assert found["triton"]["off"] == pytest.approx(0.2)


def test_a_variant_with_other_losses_is_refused_untimed_and_the_others_are_kept(script):
    script.factors = {"compile": 1.02}
    found = rows(script, "conv", "compile", "triton")
    assert "off by 2.0e-02, at most 0.01 expected" in found["compile"]["refused"]
    assert found["compile"]["ms"] is None
    assert script.timed == ["conv", "triton"]
    assert (found["triton"]["ms"], found["triton"]["off"]) == (0.6, 0)
    assert "refused" not in found["triton"]


def test_less_precise_arithmetic_is_allowed_more(script):
    script.factors = {"triton": 1.005}
    allowed = {
        precision: "refused" not in rows(script, "triton", precision=precision)["triton"]
        for precision in ("fp32", "tf32", "bf16")
    }
    assert allowed == {"fp32": False, "tf32": True, "bf16": True}


@pytest.mark.parametrize("wrong", [{"triton": float("nan")}, {"conv": float("inf")}])
def test_losses_that_are_no_numbers_are_refused(script, wrong):
    script.factors = wrong
    assert "not finite" in rows(script, "triton")["triton"]["refused"]


def test_a_variant_that_sees_other_images_says_that_it_is_not_checked(script):
    script.factors = {"compile: one batch": 1.2}
    row = rows(script, "compile: one batch")["compile: one batch"]
    assert row["unchecked"] == "sees other images than conv"
    assert "refused" not in row
    assert row["ms"] == 0.6
    assert "unchecked: sees other images" in script.line(row)
