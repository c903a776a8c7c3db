"""The examples of the README and of the guide run as they stand, and the README's table is true."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
GUIDE = README.parent / "docs" / "guide.md"
BLOCKS = [
    block for page in (README, GUIDE) for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
]


@pytest.mark.net
@pytest.mark.parametrize("source", BLOCKS, ids=range(len(BLOCKS)))
def test_a_python_example_runs(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(source, "README.md", "exec"), {})


def test_the_table_says_what_the_packaged_weights_reach():
    from purecaps.models.store import load_model, pretrained_path

    rows = re.findall(r"^\| `(pcapsnet\d)` \| ([\d,]+) \|.*\| ([\d.]+) \|$", README.read_text(), re.MULTILINE)
    assert len(rows) == 5
    for name, parameters, error in rows:
        record = load_model(pretrained_path(name))[1].record
        assert f"{record['parameters']:,}" == parameters
        assert f"{record['test_error']:.2f}" == error


@pytest.mark.parametrize("page", [README, *sorted((README.parent / "docs").rglob("*.md"))], ids=lambda page: page.name)
def test_every_local_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
