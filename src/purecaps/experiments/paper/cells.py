"""What the tables have in common: the cells of a training job and of a quoted system."""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper.entry import Cell, Results, Row
from purecaps.experiments.paper.verdict import Published, Sample, Verdict, judge, learned

NOT_RUN = "not run yet"
NONE = "–"
# With a training error from this share of the test error on, a network is said to underfit; up to that one, to overfit.
UNDERFITS, OVERFITS = 0.7, 0.5


def plain(*texts: str) -> tuple[Cell, ...]:
    return tuple(Cell(text) for text in texts)


def quoted_row(*texts: str) -> Row:
    """A line of published figures; the last cell says so."""
    return Row((*plain(*texts), Cell("quoted")), quoted=True)


def sample_text(values: Sequence[float], digits: int = 2) -> str:
    """ "0.34 ± 0.03 (10 seeds)"."""
    if not values:
        return NOT_RUN
    return f"{Sample(tuple(values)).text(digits)} ({len(values)} seed{'s' if len(values) > 1 else ''})"


def error_text(errors: Sequence[float]) -> str:
    """As `sample_text`, and what remains without the networks that did not learn, where there are any."""
    rest = learned(errors)
    failed = len(errors) - len(rest)
    if not failed or not rest:
        return sample_text(errors)
    return f"{sample_text(errors)}; {failed} did not learn, the others {Sample(rest).text()}"


def verdict_cell(paper: Published | None, values: Sequence[float], note: str = "") -> Cell:
    """What our errors say of the paper's, those of networks that learned, and a word why where that is known."""
    if not values or paper is None:
        return Cell(note if values and note else NONE)
    verdict = judge(paper, learned(values) or values)  # the mean of a tenth and of ninety percent says nothing
    return Cell(f"{verdict.text}; {note}" if note else verdict.text, verdict)


def fit_note(results: Results, name: str, paper: Published | None = None) -> str:
    """Why a job's networks err as they do: seeds that did not learn, or what their training error says.

    "underfits" where they err on the training images nearly as on the others; "overfits" where they hardly do and
    nevertheless do worse than the paper's.
    """
    train, test = results.values(name, "train_error"), results.values(name)
    if not train or not test:
        return ""
    if len(learned(test)) < len(test):
        return f"{len(test) - len(learned(test))} of {len(test)} seeds did not learn"
    share = Sample(train).mean / max(Sample(test).mean, 1e-9)
    if share >= UNDERFITS:
        return f"underfits: training error {Sample(train).mean:.2f} %"
    if share <= OVERFITS and paper is not None and judge(paper, test).word == "worse":
        return f"overfits: training error {Sample(train).mean:.2f} %"
    return ""


def mean_text(values: Sequence[float], digits: int = 2) -> str:
    return f"{Sample(tuple(values)).mean:.{digits}f}" if values else NONE


def verdicts(rows: Sequence[Row]) -> list[Verdict]:
    return [cell.verdict for row in rows for cell in row.cells if cell.verdict is not None]
