"""What a fetch tells the user, on stderr: a bar in a terminal, plain lines anywhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text


class Report:
    """Where a fetch says what it does."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        self._console.print(text, markup=False)

    @contextlib.contextmanager
    def bar(self, text: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        """Gives a function to call with each count of bytes that arrived.

        Args:
            text: what is being done.
            total: the bytes to come; None where that is not known, which makes the bar a spinner.
        """
        if not self._console.is_terminal:
            self.say(text)
            yield lambda count: None
            return
        if total is None:
            with self._console.status(Text(text)):
                yield lambda count: None
            return
        columns = TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn()
        with Progress(*columns, TimeRemainingColumn(), console=self._console, transient=True) as progress:
            task = progress.add_task(text, total=total)
            yield lambda count: progress.advance(task, count)
