"""The examples of the README and of the docs run as they stand, and the README's numbers are those recorded."""

import csv
import json
import re
from pathlib import Path

import pytest

from purecaps.models import registry

README = Path(__file__).parent.parent / "README.md"
PAGES = [README, *sorted((README.parent / "docs").glob("*.md"))]
BLOCKS = [block for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


@pytest.mark.net
@pytest.mark.parametrize("source", BLOCKS, ids=range(len(BLOCKS)))
def test_a_python_example_runs(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))  # an example registers a network
    exec(compile(source, "README.md", "exec"), {})


def test_the_table_says_what_the_packaged_weights_reach():
    from purecaps.models.store import load_model, pretrained_path

    rows = re.findall(r"^\| `(pcapsnet\d)` \| ([\d,]+) \|.*\| ([\d.]+) \|$", README.read_text(), re.MULTILINE)
    assert len(rows) == 5
    for name, parameters, error in rows:
        record = load_model(pretrained_path(name))[1].record
        assert f"{record['parameters']:,}" == parameters
        assert f"{record['test_error']:.2f}" == error


def test_the_table_says_what_is_recorded_of_the_recipes():
    rows = re.findall(r"^\| `(pcapsnet\d)` \|(.*)\|$", README.read_text(), re.MULTILINE)
    for name, cells in rows[:4]:
        ours = dict(zip(("paper", "best"), (cell.strip(" *") for cell in cells.split("|")[3:5]), strict=True))
        for recipe, text in ours.items():
            (path,) = (README.parent / "results").glob(f"table[12]/{name}-{recipe}.json")
            record = json.loads(path.read_text())
            assert text == f"{record['test_error_mean']:.2f} +- {record['test_error_std']:.2f}", path.name


def test_times_on_a_cpu_are_the_medians_that_are_recorded():
    told = re.search(r"takes ([\d.]+) ms for pcapsnet2 and (\d+) ms for pcapsnet0 \(medians\)", README.read_text())
    with (README.parent / "benchmarks" / "results.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["mode"], row["batch"]) == ("train", "128")]
    for (name, digits), text in zip((("pcapsnet2", 1), ("pcapsnet0", 0)), told.groups(), strict=True):
        ours, theirs = (
            [row for row in rows if (row["model"], row["contender"]) == (name, by)] for by in ("cpu", "compile")
        )
        # Of the last run that has both: a ratio is of one run.
        cpu = next(row for row in reversed(ours) if any(row["commit"] == other["commit"] for other in theirs))
        assert text == f"{float(cpu['median_ms']):.{digits}f}"


@pytest.mark.parametrize("page", [README, *sorted((README.parent / "docs").rglob("*.md"))], ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
