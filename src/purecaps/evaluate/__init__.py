"""What a trained network does: error rates, pictures and a report on one page."""

from __future__ import annotations

from purecaps.evaluate import pictures as pictures
from purecaps.evaluate.classification import ClassRow, Result, evaluate
from purecaps.evaluate.report import write_report

__all__ = ["ClassRow", "Result", "evaluate", "pictures", "write_report"]
