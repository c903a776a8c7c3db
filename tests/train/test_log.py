"""What a run tells while it runs."""

import io

import pytest
from rich.console import Console

from purecaps.train.log import ConsoleWatcher, MetricsFile, describe

ROW = {"step": 50, "loss": 0.12345, "error": 4.5, "lr": 0.01, "images_per_s": 12345.6, "seconds": 3.0}


def watched(*, terminal: bool) -> str:
    text = io.StringIO()
    watcher = ConsoleWatcher(Console(file=text, force_terminal=terminal, width=160))
    watcher.start(100, 0)
    for step in (50, 100):
        watcher.advance(step)
        watcher.row({**ROW, "step": step})
    watcher.stop()
    return text.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_a_watcher_shows_loss_error_speed_and_how_far_it_is(terminal):
    text = watched(terminal=terminal)
    for part in ("loss 0.1235", "error 4.50 %", "12,346 images/s", "100/100"):
        assert part in text


def test_without_a_terminal_plain_lines_tell_the_time_left():
    lines = watched(terminal=False).splitlines()
    assert len(lines) == 2
    assert all(line.endswith("s left") for line in lines)


def test_a_validation_error_is_told_when_there_is_one():
    assert "val error 1.25 %" in describe({**ROW, "val_error": 1.25})


@pytest.mark.parametrize("damaged", [b"5", b"\xff\xfe", b'{"loss": 1}', b'{"step": "two"}', b'{"step": 4, "lo'])
def test_rows_are_read_up_to_the_first_damaged_one(tmp_path, damaged):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 2}\n' + damaged + b'\n{"step": 6}\n')
    metrics = MetricsFile(path, from_step=10)
    metrics.close()
    assert metrics.rows == [{"step": 2}]
    assert path.read_text() == '{"step": 2}\n'
