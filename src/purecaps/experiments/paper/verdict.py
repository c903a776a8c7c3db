"""The paper's figure beside ours, and what that says."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t: half of the 95 % interval of a mean of n numbers is this many standard errors, for n = 2, 3, ...
_T95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T95_MANY = 2.0  # from 17 on it lies between 2.12 and 1.96


@dataclass(frozen=True)
class Published:
    """A number that somebody published.

    Args:
        value: the number.
        spread: what stands behind +-, if anything does.
        source: where it stands.
    """

    value: float
    spread: float | None
    source: str

    def text(self, digits: int = 2) -> str:
        if self.spread is None:
            return f"{self.value:.{digits}f}"
        # A spread of 0.005 is not to be rounded to twice itself.
        fits = abs(round(self.spread, digits) - self.spread) < 1e-9
        return f"{self.value:.{digits}f} ± " + (f"{self.spread:.{digits}f}" if fits else f"{self.spread:g}")


@dataclass(frozen=True)
class Sample:
    """What was measured: one number a seed, or a repetition."""

    values: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def mean(self) -> float:
        return statistics.mean(self.values)

    @property
    def std(self) -> float | None:
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    def half_interval(self) -> float:
        """Half the width of the 95 % interval of the mean; infinite for a single number."""
        if self.std is None:
            return math.inf
        n = len(self.values)
        t = _T95[n - 2] if n - 2 < len(_T95) else _T95_MANY
        return t * self.std / math.sqrt(n)

    def text(self, digits: int = 2) -> str:
        spread = "" if self.std is None else f" ± {self.std:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread}"


# A test error from which on a network is said not to have learned: of ten classes, guessing is wrong nine times in ten.
UNLEARNED = 50.0


def learned(errors: Sequence[float]) -> tuple[float, ...]:
    """The errors, in percent, of those networks that learned at all."""
    return tuple(error for error in errors if error < UNLEARNED)


@dataclass(frozen=True)
class Verdict:
    """How ours stands to the paper's.

    Args:
        word: "inside", "better" or "worse".
        text: the same with by how much, and how sure that is.
    """

    word: str
    text: str


def judge(paper: Published, ours: Sequence[float], *, digits: int = 2, accuracy: bool = False) -> Verdict:
    """Whether a mean of ours lies inside the paper's spread, or is better or worse.

    Without a spread in the paper, "inside" means that the paper's figure lies in the 95 % interval of our mean. With
    one, a mean outside of it whose 95 % interval nevertheless holds the paper's figure is said not to be told apart.
    Published figures are rounded, so half a unit of their last digit beyond the spread still counts as inside.

    Args:
        paper: an error, or an accuracy.
        ours: the same, one a seed.
        digits: after the point, of what the text says.
        accuracy: whether more is better.
    """
    sample = Sample(tuple(ours))
    gap = sample.mean - paper.value
    within = abs(gap) <= sample.half_interval()
    if paper.spread is not None and abs(gap) < paper.spread + 0.5 * 10**-digits:
        return Verdict("inside", "inside")
    if paper.spread is None and within and len(sample) > 1:
        return Verdict("inside", f"inside our interval ({gap:+.{digits}f})")
    if gap == 0:
        return Verdict("inside", "equal")
    word = "better" if (gap > 0) == accuracy else "worse"
    unsure = ", of one seed" if len(sample) == 1 else ", not told apart at 95 %" if within else ""
    return Verdict(word, f"{word} by {abs(gap):.{digits}f}{unsure}")
