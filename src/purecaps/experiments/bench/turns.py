"""Several benchmarks on one device: they get ready side by side, and each is timed while all others wait.

Getting ready is mostly a compiler's work on the CPU, and with sixteen cores sixteen of them take as long as one. Timing
wants the device to itself. So whoever gets ready holds a lock that many may hold, whoever times one that nobody else
may, of either kind. Whoever is ready says so by a file, by which one that never will be can be told from those waiting
for it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from purecaps.errors import ConfigError
from purecaps.files import atomic_write

T = TypeVar("T")


class Turns:
    """Turns that processes take by a lock on one file; without a file there is nobody to wait for.

    Args:
        path: the file, the same for all of them; it is made if it is not there.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        if path is not None:
            try:
                import fcntl  # noqa: F401, not on every platform
            except ImportError as error:
                raise ConfigError(f"turns: expected a system with file locks, got one without: {path}") from error
            path.parent.mkdir(parents=True, exist_ok=True)

    def getting_ready(self) -> contextlib.AbstractContextManager[None]:
        """Beside others that get ready, and never while one is timed."""
        if self.path is not None:
            self._marker(os.getpid()).unlink(missing_ok=True)
        return self._locked(self.path, exclusive=False)

    def timing(self) -> contextlib.AbstractContextManager[None]:
        """Alone."""
        if self.path is not None:
            self._marker(os.getpid()).touch()
        return self._locked(self.path, exclusive=True)

    def is_ready(self, process: int) -> bool:
        """Whether a process is timed, waits for that or has been, and gets nothing ready.

        Args:
            process: its number.
        """
        return self.path is not None and self._marker(process).exists()

    def once(self, name: str, kind: type[T], make: Callable[[], T]) -> T:
        """What the first of the processes made alone, for all of them: a dataclass of numbers. Not inside of `timing`.

        What has been made is read without waiting for anybody, else a process that begins late would get ready only
        after all others.

        Args:
            name: what it is called among the processes.
            kind: its class.
            make: makes it.
        """
        if self.path is None:
            return make()
        file = self.path.with_name(f"{self.path.name}.{name}.json")
        if not file.exists():
            with self._locked(file.with_suffix(".lock"), exclusive=True):
                if not file.exists():
                    with self._locked(self.path, exclusive=True):
                        made: Any = make()
                    with atomic_write(file) as temporary:
                        temporary.write_text(json.dumps(dataclasses.asdict(made)))
        return kind(**json.loads(file.read_text()))

    def _marker(self, process: int) -> Path:
        assert self.path is not None
        return self.path.with_name(f"{self.path.name}.ready-{process}")

    @staticmethod
    @contextlib.contextmanager
    def _locked(path: Path | None, *, exclusive: bool) -> Iterator[None]:
        if path is None:
            yield
            return
        import fcntl

        with open(path, "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            yield  # closing the file gives the lock back
