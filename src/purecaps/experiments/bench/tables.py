"""Measurements as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.bench.floors import Rates
from purecaps.experiments.bench.growth import AXES, Growth
from purecaps.experiments.bench.record import Row

HEADINGS = (
    "model", "mode", "batch", "contender", "min ms", "median", "spread", "images/s", "x conv", "x floor", "MiB", "kept"
)  # fmt: skip
TEXT_COLUMNS = ("model", "mode", "contender")
NONE = "-"


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """Rows as text, and below those of each network, mode and batch their floor.

    Args:
        rows: in the order of the run.
    """
    found = []
    for case in dict.fromkeys((row.model, row.mode, row.batch) for row in rows):
        here = [row for row in rows if (row.model, row.mode, row.batch) == case]
        base = next((row.min_ms for row in here if row.contender == "conv"), None)
        for row in here:
            ratio = base / row.min_ms if base and row.min_ms else None
            found.append(
                [
                    row.model,
                    row.mode,
                    f"{row.batch:,}",
                    row.contender,
                    _number(row.min_ms),
                    _number(row.median_ms),
                    _number(row.spread_ms),
                    NONE if row.images_per_s is None else f"{row.images_per_s:,.0f}",
                    NONE if ratio is None else f"{ratio:.2f}",
                    NONE if row.times_floor is None else f"{row.times_floor:.1f}",
                    _number(row.peak_mib),
                    _number(row.kept_mib),
                ]
            )
        floor, name = here[0].floor_ms, f"floor: {here[0].floor_by}"
        rate = f"{here[0].batch / floor * 1e3:,.0f}"
        faster = NONE if base is None else f"{base / floor:.2f}"
        found.append([*found[-1][:3], name, _number(floor), "", "", rate, faster, "1.0", "", ""])
    return found


def notes(rows: Sequence[Row]) -> list[str]:
    """What the table has no room for: which contenders have no time and why, and what they chose to do."""
    texts: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            texts.setdefault(f"{row.contender}: {row.note}", []).append(f"{row.model} {row.mode} {row.batch:,}")
    return [f"{text} ({', '.join(where)})" for text, where in texts.items()]


def footer(rows: Sequence[Row], rates: dict[str, Rates]) -> list[str]:
    """What the numbers mean and where they come from.

    Args:
        rows: what is shown above.
        rates: what the machine reached.
    """
    first = rows[0]
    used = {row.mode: row.precision for row in rows}
    said = ", ".join(f"{mode} {_PRECISIONS[precision]}" for mode, precision in used.items())
    reached = "; ".join(f"{precision}: {rate}" for precision, rate in rates.items())
    return [
        f"{first.hardware}, torch {first.torch}, Python {first.python}, commit {first.commit}; "
        f"n = {max(row.n for row in rows)} rounds; images/s and ratios are of the shortest",
        f"arithmetic, of all contenders alike: {said}",
        f"x conv: times faster than conv; x floor: times slower than the floor ({reached})",
        "MiB: at its most, beyond weights and images; kept: between forward and backward",
    ]


_PRECISIONS = {
    "fp32": "in float32 without TF32",
    "tf32": "in float32 with TF32 in products",
    "bf16": "under bfloat16 autocast",
    "fp16": "in float16",
}


def growth_headings(growth: Growth) -> list[str]:
    values = [f"{value:,}" for value in growth.values]
    return ["model", "contender", *values, "exponent", "at the end", "of arithmetic"]


def growth_title(growth: Growth) -> str:
    batch = "" if growth.axis == "batch" else f", batch {growth.batch:,}"
    return f"{growth.mode}{batch}: ms by {AXES[growth.axis]}"


def growth_line(growth: Growth) -> list[str]:
    exponents = (growth.exponent, growth.exponent_at_end, growth.exponent_of_arithmetic)
    fitted = [NONE if each is None else f"{each:.2f}" for each in exponents]
    return [growth.model, growth.contender, *(_number(ms) for ms in growth.ms), *fitted]


def _number(value: float | None) -> str:
    """Three figures, and thousands in full."""
    if value is None:
        return NONE
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.{1 if value >= 10 else 2 if value >= 1 else 3 if value >= 0.1 else 4}f}"
