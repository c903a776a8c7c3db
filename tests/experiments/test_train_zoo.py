"""benchmarks/train_zoo.py: what it takes over, and what it brings."""

import importlib.util
import json
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "train_zoo.py"


@pytest.fixture
def script(tmp_path, monkeypatch):
    """The script in a repository of its own, with one record in each folder."""
    spec = importlib.util.spec_from_file_location("train_zoo", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path / "repository")
    monkeypatch.setattr(module, "BUDGETS", tmp_path / "repository" / "budgets.py")
    for name in ("table1/zoo-dcnet", "table1/pcapsnet0-paper", "zoo/lenet-cifar10"):
        path = tmp_path / "repository" / "results" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"job": name}))
    (tmp_path / "repository" / "budgets.py").write_text("BUDGETS = {}\n")
    return module


def test_recorded_trainings_are_taken_over_and_newer_ones_stay(script, tmp_path):
    newer = tmp_path / "out" / "results" / "zoo" / "lenet-cifar10.json"
    newer.parent.mkdir(parents=True)
    newer.write_text("{}")
    script.take_over_recorded(tmp_path / "out")
    found = [
        str(path.relative_to(tmp_path / "out" / "results")) for path in script.records(tmp_path / "out" / "results")
    ]
    assert found == ["table1/zoo-dcnet.json", "zoo/lenet-cifar10.json"]
    assert newer.read_text() == "{}"


def test_records_and_budgets_are_brought_together(script, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    script.take_over_recorded(out)
    script.bundle(out)
    with tarfile.open(out / "records.tar") as tar:
        names = tar.getnames()
    assert names == ["results/table1/zoo-dcnet.json", "results/zoo/lenet-cifar10.json", "budgets.py"]


def test_steps_are_measured_once(script, tmp_path, monkeypatch):
    asked = []

    def reproduce(out, seconds, *words):
        asked.append(words)
        (out / "results" / "zoo").mkdir(parents=True)
        (out / "results" / "zoo" / "steps.json").write_text("first")

    monkeypatch.setattr(script, "reproduce", reproduce)
    for _ in range(2):
        assert script.measured_steps(tmp_path / "out", "full").read_text() == "first"
    assert asked == [("zoo", "--only", "steps", "--scale", "full")]


def test_without_a_measured_step_it_stops_in_one_line(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "reproduce", lambda *given: None)
    with pytest.raises(SystemExit, match="no step was timed"):
        script.measured_steps(tmp_path / "out", "full")
