"""The report: everything recorded, on one Markdown page and one HTML page, made from the JSON files alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from purecaps.evaluate import page
from purecaps.evaluate.report import inline_svg
from purecaps.evaluate.style import save
from purecaps.experiments.paper.attacking import attack_text
from purecaps.experiments.paper.cells import NONE, plain, verdicts
from purecaps.experiments.paper.entry import Entry, Results, Row, Shown, Table
from purecaps.experiments.paper.job import Job, Record
from purecaps.experiments.paper.markup import html_table, html_text, markdown_table
from purecaps.files import atomic_write
from purecaps.provenance import on_cpu
from purecaps.train.recipe import Recipe

TITLE = "The paper reproduced"
UNTOLD = ("log_every", "eval_every", "checkpoint_every")  # they change nothing that is measured
INTRODUCTION = (
    "P-CapsNets, a General Form of Convolutional Neural Networks (Chen, Li, Wang, Crandall), table by table: what the "
    "paper claims, what we measured, and what that says of the claim."
)
READING = (
    "inside: our mean lies within the paper's spread, or, where it gives none, the paper's figure within the 95 % "
    "interval of our mean. better, worse: by how many points. Quoted rows are published figures of systems that were "
    "not run here."
)
NUMBERING = "Networks are numbered as in the paper's tables; its appendix swaps #0 and #3."
STYLE = """
.claims { width: 100%; }
.claims td.n, .claims th.n { text-align: right; }
.claims td.n { white-space: nowrap; }
.claims thead th { vertical-align: bottom; }
.claims tbody th:not(.n) { min-width: 7rem; }
.quoted { color: var(--soft); font-style: italic; }
.verdict { font-weight: 600; }
.verdict.inside, .verdict.better { color: var(--green); }
.verdict.worse { color: var(--orange); }
.lead { max-width: 44rem; margin: 0 0 1rem; }
.findings { max-width: 44rem; padding-left: 1.2rem; margin: .75rem 0 0; }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
a { color: var(--accent); }
details { margin-top: .9rem; }
details table { margin-top: .5rem; }
.made td, .made th { font-size: .8rem; }
.made td { white-space: nowrap; }
.made td:last-child { font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.wide > * { min-width: var(--least); }
figure { margin: 1.25rem 0 0; }
"""


@dataclass(frozen=True)
class Part:
    """An entry as shown, with where its numbers come from and how its jobs stand.

    Args:
        entry: what is shown.
        shown: tables, pictures and findings.
        made: where the numbers come from.
        done: jobs with all their seeds.
        begun: jobs with some of them.
        changed: jobs that are recorded by another recipe than the present one.
        jobs: all jobs.
    """

    entry: Entry
    shown: Shown
    made: Table
    done: int
    begun: int
    changed: int
    jobs: int

    @property
    def progress(self) -> str:
        """ "3 of 6, 1 in part, 1 by another recipe"."""
        others = {"in part": self.begun, "by another recipe": self.changed}
        return f"{self.done} of {self.jobs}" + "".join(f", {count} {text}" for text, count in others.items() if count)

    @property
    def tally(self) -> str:
        """ "2 inside, 1 worse", or that nothing was compared."""
        words = [verdict.word for table in self.shown.tables for verdict in verdicts(table.rows)]
        counted = [f"{words.count(word)} {word}" for word in ("inside", "better", "worse") if word in words]
        return ", ".join(counted) or NONE


def write_report(results: Results, entries: Iterable[Entry]) -> list[Path]:
    """Writes REPORT.md, report.html and a PNG file for each figure; returns the paths of the first two.

    Args:
        results: what has been recorded.
        entries: what to show, in order.
    """
    parts = [_part(entry, results) for entry in entries]
    for part in parts:
        for picture in part.shown.pictures:
            save(picture.figure, results.folder / part.entry.name / f"{picture.name}.png")
    written = []
    for name, text in (("REPORT.md", _markdown(parts, results)), ("report.html", _html(parts, results))):
        with atomic_write(results.folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
        written.append(results.folder / name)
    return written


def _part(entry: Entry, results: Results) -> Part:
    jobs = list(entry.plan(results.scale))
    recorded = [job for job in jobs if results.get(job.name) is not None]
    shown = entry.show(results)
    if not recorded:  # a picture of nothing, or of what the paper says alone
        shown = dataclasses.replace(shown, pictures=())
    current = [job for job in recorded if not results.changed(job)]
    done = sum(job.is_done(record) for job in current if (record := results.get(job.name)) is not None)
    begun, changed = len(current) - done, len(recorded) - len(current)
    return Part(entry, shown, _made(recorded, results), done, begun, changed, len(jobs))


def _made(jobs: Sequence[Job], results: Results) -> Table:
    """Where the numbers come from: a line for each sitting of each job."""
    rows = []
    for job in jobs:
        record = results.get(job.name)
        assert record is not None
        changed = results.changed(job)
        for part in record["parts"]:
            versions: dict[str, Any] = part["versions"]
            rows.append(
                Row(
                    plain(
                        job.name + (f" (recipe has changed since: {'; '.join(changed)})" if changed else ""),
                        _seeds_text(part.get("seeds")),
                        _recipe_text(record, on_cpu(versions)),
                        _time_text(part),
                        versions["hardware"],
                        f"purecaps {versions['purecaps']}, torch {versions['torch']}, Python {versions['python']}",
                        versions["commit"],
                        part["finished"],
                        part["command"],
                    )
                )
            )
    columns = (
        "file",
        "seeds",
        "recipe, where not the default",
        "training",
        "hardware",
        "versions",
        "commit",
        "finished",
        "command",
    )
    return Table("Where the numbers come from", columns, tuple(rows))


def _time_text(part: Record) -> str:
    if "train_seconds" not in part:
        return NONE
    return f"{part['train_seconds']:,.0f} s{', beside others' if part.get('beside_others') else ''}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _recipe_text(record: Record, cpu: bool) -> str:
    """The fields of a recipe that are not the program's defaults; the record has them all.

    TF32 is a GPU's: on a CPU the same recipe is computed in FP32.
    """
    if record["what"].get("kind") == "attack":
        return attack_text(record["what"])
    defaults = Recipe().as_dict()
    changed = {
        name: value
        for name, value in record["what"].get("recipe", {}).items()
        if name not in UNTOLD
        and value != (list(default) if isinstance(default := defaults.get(name), tuple) else default)
    }
    if cpu and changed.get("precision") == "tf32":
        changed["precision"] = "fp32, of a CPU"
    return ", ".join(f"{name} {_value_text(value)}" for name, value in changed.items()) or NONE


def _value_text(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    return " ".join(f"{each:.3g}" if isinstance(each, float) else str(each) for each in value)


def _seeds_text(seeds: Sequence[int] | None) -> str:
    if not seeds:
        return NONE
    return str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"


def _overview(parts: Sequence[Part]) -> Table:
    rows = tuple(Row(plain(part.entry.name, part.tally, part.progress, part.entry.title)) for part in parts)
    return Table("Overview", ("entry", "verdicts", "recorded", "what it is"), rows)


def _scale_note(results: Results) -> str:
    if results.scale.name == "full":
        return ""
    return f"These are runs of scale {results.scale.name}, to see that everything works: the numbers mean nothing."


def _markdown(parts: Sequence[Part], results: Results) -> str:
    blocks = [f"# {TITLE}", INTRODUCTION]
    blocks += [f"**{_scale_note(results)}**"] if _scale_note(results) else []
    blocks += [
        "Made by `purecaps reproduce --report-only` from the JSON files beside it, which have all fields of all "
        "recipes; the same as [a page](report.html).",
        markdown_table(_overview(parts)),
        f"{READING} {NUMBERING}",
    ]
    for part in parts:
        entry, shown = part.entry, part.shown
        blocks += [
            f"## {entry.title}",
            f"{_sentence(entry.where)}. Made by `{entry.stated('Command')}`: {entry.stated('Time')}. "
            f"Expected beforehand: {entry.stated('Result')}.",
        ]
        blocks += ["\n".join(f"- {finding}" for finding in shown.findings)] if shown.findings else []
        for table in shown.tables:
            blocks += [f"### {table.title}", markdown_table(table)]
            blocks += [table.note] if table.note else []
        for picture in shown.pictures:
            blocks += [f"![{picture.alt}]({entry.name}/{picture.name}.png)", picture.caption]
        if part.made.rows:
            blocks += [f"### {part.made.title}", markdown_table(part.made)]
    return "\n\n".join(blocks) + "\n"


def _html(parts: Sequence[Part], results: Results) -> str:
    note = _scale_note(results)
    sections = [
        f'<p class="lead">{escape(INTRODUCTION)}</p>',
        f'<p class="lead"><strong>{escape(note)}</strong></p>' if note else "",
        _scroll(_linked(html_table(_overview(parts)), parts), "Overview", 30),
        f'<p class="note">{escape(READING)} {escape(NUMBERING)}</p>',
        *(_section(part) for part in parts),
    ]
    style = page.STYLE.strip() + STYLE
    return page.PAGE.substitute(title=TITLE, style=style, body="\n".join(filter(None, sections)))


def _linked(overview: str, parts: Sequence[Part]) -> str:
    """The overview with each entry's name leading to its section."""
    for part in parts:
        name = part.entry.name
        overview = overview.replace(f">{name}</th>", f'><a href="#{name}">{name}</a></th>')
    return overview


def _section(part: Part) -> str:
    entry, shown = part.entry, part.shown
    body = [
        f'<p class="note">{escape(_sentence(entry.where))}. Made by <code>{escape(entry.stated("Command"))}</code>: '
        f"{escape(entry.stated('Time'))}. Expected beforehand: {escape(entry.stated('Result'))}.</p>"
    ]
    if shown.findings:
        body.append(f'<ul class="findings">{"".join(f"<li>{escape(each)}</li>" for each in shown.findings)}</ul>')
    for table in shown.tables:
        body.append(f"<h3>{escape(table.title)}</h3>")
        body.append(_scroll(html_table(table), table.title, min(58, 6 * len(table.columns) + 8)))
        if table.note:
            body.append(f'<p class="note">{html_text(table.note)}</p>')
    for picture in shown.pictures:
        svg = inline_svg(picture.figure, f"{entry.name}-{picture.name}", picture.alt)
        drawn = _scroll(svg, picture.alt, 32)
        body.append(f"<figure>{drawn}<figcaption>{escape(picture.caption)}</figcaption></figure>")
    if part.made.rows:
        made = html_table(part.made).replace('class="claims"', 'class="claims made"')
        recorded = part.done + part.begun + part.changed
        body.append(
            f"<details><summary>{escape(part.made.title)}: {recorded} of {part.jobs} jobs</summary>"
            f"{_scroll(made, part.made.title, 60)}</details>"
        )
    content = "\n".join(body)
    return f'<section id="{entry.name}">\n<h2>{escape(entry.title)}</h2>\n{content}\n</section>'


def _scroll(body: str, name: str, least: int) -> str:
    """Room that scrolls sideways where the screen is narrower than `least` rem, from the keyboard as well."""
    attributes = f'style="--least: {least}rem" tabindex="0" role="region" aria-label="{escape(name)}"'
    return f'<div class="scroll wide" {attributes}>{body}</div>'
