"""Takes what benchmarks/tune.py found over into ops/triton/plan_table.py.

    PYTHONPATH=src python benchmarks/apply_tuning.py TUNED.json [TUNED.json ...]

A tile takes the place of the one in the table where it was at least 3 % faster in the same run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from purecaps.files import atomic_write
from purecaps.ops.triton import plan_table
from purecaps.ops.triton.plan import has_many
from purecaps.ops.triton.tile import Tile
from tune import Case, problem_for

FASTER = 0.97


def lines(table: Mapping[plan_table.Key, tuple[Tile, int]]) -> str:
    text = ""
    for key, (tile, programs) in table.items():
        numbers = [
            tile.rows,
            tile.columns,
            tile.inner,
            tile.warps,
            tile.stages,
            *([tile.span] if tile.span > 1 else []),
        ]
        text += (
            f'    ("{key[0]}", {", ".join(map(str, key[1:]))}): (Tile({", ".join(map(str, numbers))}), {programs}),\n'
        )
    return text


def main() -> None:
    tables = {"TUNED": dict(plan_table.TUNED), "TUNED_MANY": dict(plan_table.TUNED_MANY)}
    for name in sys.argv[1:]:
        for result in json.loads(Path(name).read_text())["results"]:
            case = Case(**result["case"])
            best = result["tried"][0]
            if not best["us"] < FASTER * result["planned_us"]:
                continue
            problem, tile = problem_for(case), Tile(**best["tile"])
            tiles = -(-problem.inner // tile.rows) * -(-problem.O * problem.p_pad // tile.columns)
            key = (
                case.kernel, problem.itemsize, problem.C, problem.n, problem.O, problem.p, problem.H,
                problem.geometry.stride[0],
            )  # fmt: skip
            many = has_many(case.kernel, case.networks, case.batch)
            tables["TUNED_MANY" if many else "TUNED"][key] = (tile, best["splits"] * tiles)
            print(f"{case}: {result['planned_us']:.1f} -> {best['us']:.1f} us, {tile}")
    path = Path(plan_table.__file__)
    text = path.read_text()
    for name, table in tables.items():
        head, rest = text.split(f"\n{name}: ", 1)
        kind, after = rest.split(" = {\n", 1)
        text = f"{head}\n{name}: {kind} = {{\n{lines(table)}}}{after.split(chr(10) + '}', 1)[1]}"
    with atomic_write(path) as temporary:
        temporary.write_text(text)


if __name__ == "__main__":
    main()
