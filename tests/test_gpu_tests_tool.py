"""tools/gpu_tests.py: tests in several processes, and none that is lost unseen."""

import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "gpu_tests.py"
TESTS = """
import time
import pytest

@pytest.mark.slow
@pytest.mark.parametrize("x", ["a b", "c[d]", "e"])
def test_passes(x): pass

@pytest.mark.slow
def test_other(): {body}

def test_unmarked(): raise AssertionError("was not asked for")
"""


@pytest.mark.parametrize(
    ("body", "told", "code"),
    [
        ("pass", "4 passed, 0 failed, 0 skipped, 0 not reached, of 4", 0),
        ("assert False", "3 passed, 1 failed, 0 skipped, 0 not reached, of 4", 1),
        ("time.sleep(60)", "3 passed, 0 failed, 0 skipped, 1 not reached, of 4", 1),
    ],
)
def test_every_marked_test_is_accounted_for(tmp_path, body, told, code):
    (tmp_path / "test_it.py").write_text(TESTS.format(body=body))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, str(TOOL), str(tmp_path / "out"), "--workers", "2", "--marker", "slow", "--seconds", "8"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == told
    assert done.returncode == code
    if code:
        assert done.stdout.splitlines()[0].endswith(": test_it.py::test_other")
