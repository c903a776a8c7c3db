"""What was measured, with all that a number needs beside it, and how it is kept."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from filelock import FileLock

from purecaps.errors import DataError
from purecaps.files import atomic_write


@dataclass(frozen=True)
class Row:
    """One measurement, or why there is none.

    Times are milliseconds a call, over `n` rounds; the spread is the longest less the shortest. Images a second are of
    the shortest. Memory is that of a call beyond weights and images: `peak_mib` at its most, `kept_mib` between forward
    and backward. New columns go to the end: files of older versions are added to.
    """

    date: str
    hardware: str
    torch: str
    python: str
    commit: str
    mode: str
    model: str
    batch: int
    contender: str
    n: int
    min_ms: float | None
    median_ms: float | None
    spread_ms: float | None
    images_per_s: float | None
    peak_mib: float | None
    times_floor: float | None
    precision: str
    floor_ms: float
    floor_by: str
    kept_mib: float | None
    note: str


COLUMNS = [field.name for field in fields(Row)]


def append_csv(path: Path, rows: Sequence[Row]) -> None:
    """Adds rows to a CSV file, which is made if it is not there; one of an older version gets the columns it lacks.

    The whole file is written anew, so two processes at once would lose rows: they wait for each other by a hidden lock
    file, which stays beside it.

    Args:
        path: the file.
        rows: what to add.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        before = read_csv(path) if path.exists() else []
        with atomic_write(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(before)
            writer.writerows({name: _text(value) for name, value in asdict(row).items()} for row in rows)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file as text, those of older versions included.

    Args:
        path: the file.
    """
    with open(path, newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        found = list(reader.fieldnames or [])
        if found != COLUMNS[: len(found)]:
            wrong = [name for name in found if name not in COLUMNS] or found
            raise DataError(f"{path}: expected the columns {', '.join(COLUMNS[:3])}, ..., got {', '.join(wrong)}")
        rows = list(reader)
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise DataError(f"{path}: expected {len(found)} values in line {number}, got another number of them")
    return rows


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
