"""The README's examples run as they stand."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.net
@pytest.mark.parametrize("source", BLOCKS, ids=lambda source: source.split("\n")[0])
def test_a_python_example_runs(source):
    exec(compile(source, "README.md", "exec"), {})


def test_the_table_says_what_the_packaged_weights_reach():
    from purecaps.models.store import load_model, pretrained_path

    rows = re.findall(r"^\| `(pcapsnet\d)` \| ([\d,]+) \|.*\| ([\d.]+) \|$", README.read_text(), re.MULTILINE)
    assert len(rows) == 5
    for name, parameters, error in rows:
        record = load_model(pretrained_path(name))[1].record
        assert f"{record['parameters']:,}" == parameters
        assert f"{record['test_error']:.2f}" == error


def test_every_local_link_leads_somewhere():
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
        assert (README.parent / target).exists(), target
