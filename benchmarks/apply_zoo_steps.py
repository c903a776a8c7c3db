"""Takes what benchmarks/zoo_steps.py measured over into experiments/paper/budgets.py.

    PYTHONPATH=src python benchmarks/apply_zoo_steps.py STEPS.json --seconds 40

Of every network that was timed, the budget becomes what can be trained in so many seconds, getting ready included, and
at most its recipe's own steps; compiled where more steps fit so. Others keep what they have. A network with a new
budget has to be trained anew.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from purecaps.experiments.paper import budgets
from purecaps.experiments.paper.budgets import Budget
from purecaps.experiments.paper.systems import SYSTEMS
from purecaps.files import atomic_write

LEAST_STEPS = 100


def new_budgets(rows: Iterable[Mapping[str, Any]], seconds: float, whole: Mapping[str, int]) -> dict[str, Budget]:
    """Budgets of the networks that were timed.

    Args:
        rows: what was measured; one with the reason why not is passed over.
        seconds: for one training.
        whole: steps of each network's whole recipe.
    """
    found: dict[str, Budget] = {}
    for row in rows:
        if "why" in row:
            continue
        fit = max(LEAST_STEPS, _two_digits((seconds - row["ready_s"]) * 1e3 / row["ms"]))
        budget = Budget(min(fit, whole[row["job"]]), float(f"{row['ms']:.2g}"), row["compiled"])
        if row["job"] not in found or budget.steps > found[row["job"]].steps:
            found[row["job"]] = budget
    return found


def text_of(table: Mapping[str, Budget]) -> str:
    """The table as it stands in budgets.py."""
    lines = []
    for name, budget in table.items():
        compiled = ", compiled=True" if budget.compiled else ""
        lines.append(f'    "{name}": Budget({budget.steps:_}, {budget.ms:g}{compiled}),\n')
    return "BUDGETS: dict[str, Budget] = {\n" + "".join(lines) + "}\n"


def _two_digits(number: float) -> int:
    """Rounded down, so that it looks like the choice that it is: 12,345 as 12,000."""
    if number < 1:
        return 0
    unit = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return int(number // unit * unit)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("steps", type=Path, help="what zoo_steps.py wrote")
    parser.add_argument("--seconds", type=float, required=True, help="for one training")
    options = parser.parse_args()
    rows = json.loads(options.steps.read_text())["rows"]
    found = new_budgets(rows, options.seconds, {system.name: system.whole.steps for system in SYSTEMS})
    path = Path(budgets.__file__)
    head = path.read_text().split("BUDGETS: dict", 1)[0]
    with atomic_write(path) as temporary:
        temporary.write_text(head + text_of({**budgets.BUDGETS, **found}))
    total = 0.0
    for system in SYSTEMS:
        budget = found.get(system.name, budgets.BUDGETS[system.name])
        total += system.seeds * budget.steps * budget.ms / 60e3
        print(f"{system.name:34} {budget.steps:8,} of {system.whole.steps:8,} steps  {budget.ms:6g} ms", flush=True)
    print(f"about {total:.0f} minutes of training steps in all, by the seeds that each has now")


if __name__ == "__main__":
    main()
