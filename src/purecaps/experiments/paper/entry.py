"""An entry: one table or figure of the paper, what has to be run for it, and how it is shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from purecaps.errors import ConfigError
from purecaps.experiments.paper.job import Job, Record, differences, read_at
from purecaps.experiments.paper.scale import FULL, Scale
from purecaps.experiments.paper.verdict import Verdict


@dataclass(frozen=True)
class Cell:
    """One cell of a table: what stands in it, and the verdict it carries, if any."""

    text: str
    verdict: Verdict | None = None


@dataclass(frozen=True)
class Row:
    """A line of a table; `quoted` where the figures are another publication's and nothing was run."""

    cells: tuple[Cell, ...]
    quoted: bool = False


@dataclass(frozen=True)
class Table:
    """A table as it is shown.

    Args:
        title: what it is.
        columns: headings; those of numbers end in a unit or are listed in `numeric`.
        rows: lines, of as many cells as there are columns.
        numeric: headings of the columns that are set flush right.
        note: what a reader must know.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    numeric: tuple[str, ...] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ConfigError(f"rows: expected {len(self.columns)} cells in {self.title!r}, got {len(row.cells)}")


@dataclass(frozen=True)
class Picture:
    """A figure, the name of its PNG file, what it shows in words, and its caption."""

    name: str
    figure: Figure
    alt: str
    caption: str


@dataclass(frozen=True)
class Shown:
    """An entry as the report has it.

    Args:
        tables: in their order.
        pictures: likewise.
        findings: sentences that the numbers bear out; none where nothing has been run.
    """

    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...] = ()
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One table or figure.

    Args:
        name: what the command line calls it.
        title: its heading.
        where: where in the paper it stands, or that it goes beyond it.
        doc: its file's docstring, with a line each for Command, Time and Result.
        plan: its jobs at a scale.
        show: from what is recorded to what the report shows.
    """

    name: str
    title: str
    where: str
    doc: str
    plan: Callable[[Scale], Sequence[Job]]
    show: Callable[[Results], Shown]

    def stated(self, what: str) -> str:
        """The docstring's line on "Command", "Time" or "Result", with the lines indented below it."""
        found = re.search(rf"^{what}: (.*(?:\n +.+)*)", self.doc, re.MULTILINE)
        if found is None:
            raise ConfigError(f"{self.name}: expected a line '{what}: ...' in its file's docstring, got none")
        return " ".join(found[1].split())


@dataclass
class Results:
    """What has been recorded, by job."""

    folder: Path
    scale: Scale = FULL
    _records: dict[str, Record | None] = field(default_factory=dict)

    def get(self, name: str) -> Record | None:
        """The record of a job, whatever it was made of; None where there is none, one of another scale is refused."""
        if name not in self._records:
            self._records[name] = read_at(self.folder, name, self.scale.name)
        return self._records[name]

    def changed(self, job: Job) -> list[str]:
        """How the job has changed since its record was made; nothing without a record."""
        record = self.get(job.name)
        return [] if record is None else differences(job, record)

    def values(self, name: str, field: str = "test_error") -> tuple[float, ...]:
        """A number of each seed of a training job, such as its test error; none where nothing is recorded."""
        record = self.get(name)
        return () if record is None else tuple(run[field] for run in record["runs"] if field in run)
