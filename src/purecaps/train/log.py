"""What a run tells: rows of metrics as JSON lines, and a bar or plain lines for who watches."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from purecaps.errors import ConfigError
from purecaps.files import atomic_write

Row = dict[str, float]


class MetricsFile:
    """Rows appended to a JSON-lines file; on resuming, rows later than the checkpoint are dropped first."""

    def __init__(self, path: Path, *, from_step: int) -> None:
        self.path = path
        self.rows: list[Row] = [row for row in read_metrics(path) if row["step"] <= from_step]
        with atomic_write(path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in self.rows))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics file, up to the first line that is none, such as a last one cut off by a kill."""
    if not path.is_file():
        return []
    rows: list[Row] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            break
        if not isinstance(row, dict) or not isinstance(row.get("step"), int | float):
            break
        rows.append(row)
    return rows


class Watcher(Protocol):
    """Who is told of a run's progress."""

    def start(self, total: int, done: int) -> None: ...
    def advance(self, step: int) -> None: ...
    def row(self, row: Row) -> None: ...
    def stop(self) -> None: ...


class Silent:
    """A watcher that says nothing."""

    def start(self, total: int, done: int) -> None:
        pass

    def advance(self, step: int) -> None:
        pass

    def row(self, row: Row) -> None:
        pass

    def stop(self) -> None:
        pass


class ConsoleWatcher:
    """A progress bar on a terminal; elsewhere a plain line now and then."""

    def __init__(self, console: Console, *, seconds_between_lines: float = 10) -> None:
        self.console = console
        self.pause = seconds_between_lines
        self._total = 0
        self._started = self._said = time.monotonic()
        self._first = 0
        self._task: TaskID | None = None
        self._bar = Progress(
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
        )

    def start(self, total: int, done: int) -> None:
        self._total, self._first = total, done
        self._started = time.monotonic()
        self._said = self._started - self.pause
        if self.console.is_terminal:
            self._task = self._bar.add_task("", total=total, completed=done)
            self._bar.start()

    def advance(self, step: int) -> None:
        if self._task is not None:
            self._bar.update(self._task, completed=step)

    def row(self, row: Row) -> None:
        text = describe(row)
        if self._task is not None:
            self._bar.update(self._task, completed=row["step"], description=text)
            return
        now = time.monotonic()
        if now - self._said >= self.pause or row["step"] == self._total:
            self._said = now
            per_step = (now - self._started) / max(1, row["step"] - self._first)
            left = per_step * (self._total - row["step"])
            self.console.print(f"step {row['step']:.0f}/{self._total}  {text}  {left:.0f} s left", soft_wrap=True)

    def stop(self) -> None:
        if self._task is not None:
            self._bar.stop()


def require_tensorboard() -> Any:
    """TensorBoard's writer; an error that says what to install where it is not there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError(
            "--tensorboard: expected the package tensorboard, which is not installed; pip install tensorboard"
        ) from error
    return SummaryWriter


class TensorBoard:
    """Rows as TensorBoard scalars; needs the extra of that name. Earlier rows past `from_step` are hidden."""

    def __init__(self, folder: Path, *, from_step: int) -> None:
        self._writer: Any = require_tensorboard()(str(folder), purge_step=from_step + 1)

    def add(self, row: Row) -> None:
        for name, value in row.items():
            if name != "step":
                self._writer.add_scalar(name, value, int(row["step"]))
        self._writer.flush()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()


def describe(row: Row) -> str:
    """A row of metrics as one short line."""
    parts = [f"loss {row['loss']:.4f}", f"error {row['error']:.2f} %"]
    if "val_error" in row:
        parts.append(f"val error {row['val_error']:.2f} %")
    parts.append(f"{row['images_per_s']:,.0f} images/s")
    return "  ".join(parts)
