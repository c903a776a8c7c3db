"""NVIDIA's service for several processes, by a stand-in for its control program."""

import pytest

from purecaps.experiments.paper import mps
from purecaps.experiments.paper.mps import CONTROL, multi_process_service


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """A control program that writes down how it was called, and the file that it writes to."""
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "USUAL", tmp_path / "nobody")
    log = tmp_path / "calls"
    program = tmp_path / CONTROL
    program.write_text(f'#!/bin/sh\necho "$1 $(cat) $CUDA_MPS_PIPE_DIRECTORY" >> {log}\nexit ${{EXIT_CODE:-0}}\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(mps, "CLIENT", "pass")
    return log


def test_it_is_started_for_the_processes_and_stopped_after_them(calls):
    said = []
    with multi_process_service(said.append) as variables:
        pipe = variables["CUDA_MPS_PIPE_DIRECTORY"]
        assert calls.read_text().split() == ["-d", pipe]
    assert calls.read_text().splitlines()[1].split() == ["quit", pipe]
    assert said == []


def test_it_is_stopped_where_the_processes_fail(calls):
    with pytest.raises(ZeroDivisionError), multi_process_service(print):
        raise ZeroDivisionError
    assert "quit" in calls.read_text()


def test_where_it_does_not_start_the_processes_go_on_without_it(calls, monkeypatch):
    monkeypatch.setenv("EXIT_CODE", "1")
    said = []
    with multi_process_service(said.append) as variables:
        assert variables == {}
    assert said == [f"{CONTROL} did not start (exit code 1): the processes take turns on the GPU"]
    assert "quit" not in calls.read_text()


def test_where_it_starts_and_serves_nobody_the_processes_go_on_without_it(calls, monkeypatch):
    monkeypatch.setattr(mps, "CLIENT", "raise SystemExit(3)")
    said = []
    with multi_process_service(said.append) as variables:
        assert variables == {}
    assert said == [f"{CONTROL} started and serves nobody (exit code 3): the processes take turns on the GPU"]
    assert "quit" in calls.read_text()


def test_where_it_is_not_there_that_is_said(calls, monkeypatch):
    (calls.parent / CONTROL).unlink()
    monkeypatch.setenv("PATH", str(calls.parent))
    said = []
    with multi_process_service(said.append) as variables:
        assert variables == {}
    assert said == [f"{CONTROL} is not there: the processes take turns on the GPU"]


def test_one_that_somebody_else_has_started_is_left_alone(calls, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/theirs")
    with multi_process_service(print) as variables:
        assert variables == {}
    assert not calls.exists()
