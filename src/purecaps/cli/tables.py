"""Tables that several verbs print."""

from __future__ import annotations

from rich.table import Table

from purecaps.cli.support import out
from purecaps.evaluate import Result


def print_result(result: Result, source: str, class_names: tuple[str, ...] | None = None) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("class", "images", "errors", "error %", "most confused with"):
        table.add_column(column, justify="left" if column in ("class", "most confused with") else "right")
    for row in result.per_class(class_names):
        rate = "-" if row.error_rate is None else f"{row.error_rate:.2f}"
        table.add_row(row.name, str(row.n), str(row.errors), rate, row.most_confused_with or "-")
    out.print(table)
    low, high = result.interval()
    out.print(f"{result.errors} of {len(result):,} wrong on {source} (95 % interval {low:.2f} to {high:.2f} %)")
