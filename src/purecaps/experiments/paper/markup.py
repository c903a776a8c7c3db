"""A table and a provenance as Markdown and as HTML."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from purecaps.experiments.paper.entry import Cell, Row, Table

_LINK = re.compile(r"\[([^\]]+)\]\(([^)]+)\)")


def markdown_table(table: Table) -> str:
    """A table of GitHub's Markdown; rows of quoted figures are in italics."""
    lines = [
        f"| {' | '.join(table.columns)} |",
        f"|{'|'.join('---:' if name in table.numeric else '---' for name in table.columns)}|",
    ]
    lines += [f"| {' | '.join(_markdown_cell(cell, row) for cell in row.cells)} |" for row in table.rows]
    return "\n".join(lines)


def _markdown_cell(cell: Cell, row: Row) -> str:
    text = cell.text.replace("|", "\\|").replace("*", "\\*")
    if row.quoted and text != "–":
        return f"*{text}*"
    return f"**{text}**" if cell.verdict is not None and cell.verdict.word != "worse" else text


def html_table(table: Table) -> str:
    """The same as HTML; verdicts have a class each, for the style sheet to colour."""
    head = "".join(f'<th scope="col"{_class(name, table)}>{escape(name)}</th>' for name in table.columns)
    body = "".join(
        f"<tr{' class=quoted' if row.quoted else ''}>{''.join(_html_cells(row, table))}</tr>" for row in table.rows
    )
    return f'<table class="claims"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _html_cells(row: Row, table: Table) -> Sequence[str]:
    cells = []
    for position, (cell, name) in enumerate(zip(row.cells, table.columns, strict=True)):
        # Numbers are not broken, so that what is said beside them needs lines of its own.
        lines = re.split(r"(?<=[;,]) ", cell.text) if name in table.numeric else [cell.text]
        text = "<br>".join(map(escape, lines))
        if cell.verdict is not None:
            text = f'<span class="verdict {cell.verdict.word}">{text}</span>'
        tag = 'th scope="row"' if position == 0 else "td"
        cells.append(f"<{tag}{_class(name, table)}>{text}</{tag.split()[0]}>")
    return cells


def _class(name: str, table: Table) -> str:
    return ' class="n"' if name in table.numeric else ""


def html_text(text: str) -> str:
    """A line of plain text as HTML; a link of Markdown, which leads out of the page, keeps its words alone."""
    return escape(_LINK.sub(r"\1", text))
