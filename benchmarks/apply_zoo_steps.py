"""Takes what a training step of every network of the zoo takes over into experiments/paper/budgets.py.

    purecaps reproduce zoo --only steps
    PYTHONPATH=src python benchmarks/apply_zoo_steps.py results/zoo/steps.json --seconds 25 --ready 12 \\
        --slow-seconds 60 --slow-ready 25 [--workers 5]

Of every network that was timed, the budget becomes what can be trained in so many seconds with the device for itself,
getting ready included, and at most its recipe's own steps; compiled where more steps fit so. Slow ones, whose steps
take 20 ms or more as they are, may have other seconds: in those of the others they would hardly begin. Networks that
were not timed keep their budgets, and so do those that have a record already: with a new one they would have to be
trained anew. The times that the entries' docstrings state are set by the new budgets, too.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from purecaps.experiments.paper import budgets, table1, table3, zoo
from purecaps.experiments.paper.budgets import BUDGETS, Budget
from purecaps.experiments.paper.scale import FULL
from purecaps.experiments.paper.system import System
from purecaps.experiments.paper.systems import SYSTEMS
from purecaps.files import atomic_write

LEAST_STEPS = 100
SLOW_MS = 20.0  # a step, not compiled


class Time(NamedTuple):
    """For one training.

    Args:
        seconds: in all.
        ready: the most of them that getting ready is taken to need, however long it was measured to.
    """

    seconds: float
    ready: float = math.inf


def new_budgets(
    rows: Sequence[Mapping[str, Any]], time: Time, whole: Mapping[str, int], slow: Time | None = None
) -> dict[str, Budget]:
    """Budgets of the networks that were timed.

    Args:
        rows: what was measured; one with the reason why not is passed over, and networks that have no budget.
        time: for one training.
        whole: steps of each network's whole recipe.
        slow: for one of a network whose steps take `SLOW_MS` or more; None makes no difference between them.
    """
    of_slow = {row["job"] for row in rows if not row["compiled"] and row.get("ms", 0) >= SLOW_MS}
    found: dict[str, Budget] = {}
    for row in rows:
        if "why" in row or row["job"] not in whole:
            continue
        seconds, ready = slow if slow is not None and row["job"] in of_slow else time
        fit = max(LEAST_STEPS, _two_digits((seconds - min(row["ready_s"], ready)) * 1e3 / row["ms"]))
        budget = Budget(min(fit, whole[row["job"]]), float(f"{row['ms']:.2g}"), row["compiled"])
        if row["job"] not in found or budget.steps > found[row["job"]].steps:
            found[row["job"]] = budget
    return found


def estimates(timed: Collection[str], ready: float) -> list[dict[str, Any]]:
    """Rows as of a measurement, of networks that were not timed; where `ready` has no end, 12 seconds to get ready."""
    ready = ready if math.isfinite(ready) else 12.0
    return [
        {"job": name, "ms": budget.ms, "ready_s": ready, "compiled": False}
        for name, budget in BUDGETS.items()
        if name not in timed
    ]


def text_of(table: Mapping[str, Budget]) -> str:
    """The table as it stands in budgets.py."""
    lines = []
    for name, budget in table.items():
        compiled = ", compiled=True" if budget.compiled else ""
        lines.append(f'    "{name}": Budget({budget.steps:_}, {budget.ms:g}{compiled}),\n')
    return "BUDGETS: dict[str, Budget] = {\n" + "".join(lines) + "}\n"


def total_text(systems: Iterable[System], ready: Mapping[tuple[str, bool], float], workers: int) -> str:
    """What all trainings take by the present budgets, if they are run one after the other.

    Args:
        systems: what is trained.
        ready: seconds to get ready, by job and whether compiled; 0 where it is not known.
        workers: how many processes are to share them.
    """
    seconds = [
        each.steps * each.ms / 1e3 + ready.get((each.name, each.budget.compiled), 0.0)
        for each in systems
        for _ in range(each.seeds)
    ]
    text = f"{len(seconds)} trainings of {sum(seconds) / 60:.0f} minutes in all, one after the other, the device alone"
    if workers == 1:
        return text
    return (
        f"{text}; {workers} workers have {sum(seconds) / workers / 60:.0f} each, and take longer in so far as one "
        "training fills the device"
    )


def with_time(source: str, minutes: float) -> str:
    """An entry's file with that time in its docstring."""
    return re.sub(r"(?m)^Time: about \d+ minutes", f"Time: about {minutes:.0f} minutes", source, count=1)


def _two_digits(number: float) -> int:
    """Rounded down, so that it looks like the choice that it is: 12,345 as 12,000."""
    if number < 1:
        return 0
    unit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return int(number // unit * unit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path, help="the record of `purecaps reproduce zoo --only steps`")
    parser.add_argument("--seconds", type=float, required=True, help="for one training")
    parser.add_argument(
        "--ready",
        type=float,
        default=math.inf,
        help="the most seconds to allow for getting ready: with the compiler's cache of the measurement at hand, "
        "trainings need less than it did",
    )
    parser.add_argument("--slow-seconds", type=float, help="for one training of a slow network; else as of the others")
    parser.add_argument("--slow-ready", type=float, default=math.inf, help="as --ready, for slow networks")
    parser.add_argument(
        "--estimated", action="store_true", help="networks that were not timed: by what a step is estimated to take"
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="where records are, whose budgets stay")
    parser.add_argument("--workers", type=int, default=1, help="how many processes will share the trainings")
    options = parser.parse_args()
    rows = json.loads(options.steps.read_text())["runs"]
    whole = {
        system.name: system.whole.steps for system in SYSTEMS if not (options.results / f"{system.name}.json").is_file()
    }
    if options.estimated:
        rows += estimates({row["job"] for row in rows if "why" not in row}, options.ready)
    slow = None if options.slow_seconds is None else Time(options.slow_seconds, options.slow_ready)
    BUDGETS.update(new_budgets(rows, Time(options.seconds, options.ready), whole, slow))
    path = Path(budgets.__file__)
    head = path.read_text().split("BUDGETS: dict", 1)[0]
    with atomic_write(path) as temporary:
        temporary.write_text(head + text_of(BUDGETS))
    for module in (table1, table3, zoo):
        minutes = sum(job.seconds_left(None) for job in module.plan(FULL)) / 60
        file = Path(module.__file__)
        source = with_time(file.read_text(), minutes)
        with atomic_write(file) as temporary:
            temporary.write_text(source)
    for each in SYSTEMS:
        how = ", compiled" if each.budget.compiled else ""
        print(f"{each.name:34} {each.steps:8,} of {each.whole.steps:8,} steps  {each.ms:6g} ms{how}", flush=True)
    ready = {(row["job"], row["compiled"]): min(row["ready_s"], options.ready) for row in rows if "ready_s" in row}
    print(total_text(SYSTEMS, ready, options.workers))


if __name__ == "__main__":
    main()
