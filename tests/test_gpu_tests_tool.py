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


def run(folder, tests, seconds=40):
    (folder / "test_it.py").write_text(tests)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    command = [sys.executable, str(TOOL), str(folder / "out"), "--workers", "2", "--marker", "slow"]
    command += ["--seconds", str(seconds)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=55, check=False)


ENDINGS = """
import time
import pytest
pytestmark = pytest.mark.slow

@pytest.mark.parametrize("x", ["a b", "c[d]"])
def test_passes(x): pass

def test_fails(): assert False
def test_is_skipped(): pytest.skip('no network')
def test_takes_too_long(): time.sleep(60)
"""


def test_every_marked_test_is_accounted_for(tmp_path):
    done = run(tmp_path, ENDINGS, seconds=12)
    *named, told = done.stdout.splitlines()
    assert told == "2 passed, 1 failed, 1 skipped, 1 not reached, of 5"
    assert done.returncode == 1
    assert any(line.endswith(": test_it.py::test_fails") for line in named)
    assert any(line.endswith(": test_it.py::test_takes_too_long") for line in named)


def test_a_run_in_which_all_passes_is_a_success(tmp_path):
    done = run(tmp_path, TESTS.format(body="pass"))
    assert done.stdout.splitlines()[-1] == "4 passed, 0 failed, 0 skipped, 0 not reached, of 4"
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("pytest.skip('needs a CUDA device')", "1 skipped: needs a CUDA device"),
        ("__import__('atexit').register(__import__('os').abort)", "shard 1: exit code -6"),
        ("__import__('atexit').register(lambda: __import__('os')._exit(3))", "shard 1: exit code 3"),
    ],
)
def test_a_run_is_no_success_without_a_device_or_where_a_process_breaks(tmp_path, body, told):
    done = run(tmp_path, TESTS.format(body=body))
    assert told in done.stdout.splitlines()
    assert "0 failed" in done.stdout
    assert done.returncode == 1


def test_a_run_in_which_nothing_passed_is_no_success(tmp_path):
    done = run(tmp_path, "import pytest\npytestmark = pytest.mark.slow\ndef test_it(): pytest.skip('no network')\n")
    assert done.stdout.splitlines()[-1] == "0 passed, 0 failed, 1 skipped, 0 not reached, of 1"
    assert done.returncode == 1


def test_a_test_that_passes_against_expectation_has_been_reached(tmp_path):
    done = run(tmp_path, TESTS.format(body="pass").replace("def test_other", "@pytest.mark.xfail\ndef test_other"))
    assert done.stdout.splitlines()[-1] == "4 passed, 0 failed, 0 skipped, 0 not reached, of 4"
    assert done.returncode == 0


def test_a_file_that_cannot_be_read_is_no_success_and_the_others_run(tmp_path):
    (tmp_path / "test_broken.py").write_text("import a_module_that_is_not_there\n")
    done = run(tmp_path, TESTS.format(body="pass"))
    assert done.stdout.splitlines()[-1] == "4 passed, 0 failed, 0 skipped, 0 not reached, of 4"
    assert "a_module_that_is_not_there" in done.stdout
    assert done.returncode == 1
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["log.txt"]


def test_tests_that_cannot_be_collected_in_time_are_no_success(tmp_path):
    done = run(tmp_path, "import time\ntime.sleep(60)\n", seconds=3)
    assert "pytest could not collect the tests in 3 s" in done.stderr
    assert done.returncode == 1
