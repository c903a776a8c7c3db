"""Which block sizes issue the fewest instructions? Compiled for an H200 and counted, without one.

    PYTHONPATH=src python benchmarks/rank_tiles.py OUT.json pcapsnet2:128:tf32:10 [--layers 1,2] [--kernels forward]

Of ten networks side by side a second layer's input gradient took 80 us where 50 is what its instructions need at the
device's full rate. So the count is worth knowing; but it is not the time: tiles that load or store number by number, or
that leave few warps on a multiprocessor, took several times as long as their count. Therefore the best of each kind are
kept, by span, warps and rows, and benchmarks/tune.py --ranked times them. Takes about a second a tile.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from purecaps.ops.triton import forward, input_gradient
from purecaps.ops.triton.offline import Catcher, Compiled, catch
from purecaps.ops.triton.plan import planned
from purecaps.ops.triton.tile import Tile
from tune import Case, cases_of, launcher, problem_for, tiles_of

# An instruction for each of four schedulers of 132 multiprocessors, at 1.755 GHz.
FULL_RATE = 4 * 132 * 1.755e9
caught: list[Compiled] = []


def steps_of(case: Case, tile: Tile) -> float:
    """How often the loop over the sum runs, on average over pixels."""
    problem = problem_for(case)
    stride = problem.geometry.stride
    if case.kernel == "forward":
        seen = problem.kw + (tile.span - 1) * stride[1]
        return math.ceil(problem.kh * seen * problem.C * problem.n / tile.inner)
    width = problem.O * problem.p
    packed = tile.inner // width if tile.span > 1 and width < tile.inner and tile.inner % width == 0 else 1
    down, across = problem.kh / stride[0], problem.kw / stride[1] + tile.span - 1
    return down * math.ceil(across / packed) * math.ceil(width / tile.inner)


def count(case: Case, tile: Tile) -> dict[str, Any]:
    """A tile and what it costs: instructions of all warps, and the microseconds that they take at the full rate."""
    if not isinstance(forward.forward_kernel, Catcher):
        catch(forward, "forward_kernel", caught.append)
        catch(input_gradient, "input_gradient_kernel", caught.append)
    try:
        with planned(**{case.kernel: tile}):
            launcher(case, "cpu")()
    except Exception as error:  # the compiler refuses some
        return {"tile": asdict(tile), "us": math.inf, "why": f"{type(error).__name__}: {error}"[:120]}
    made = caught[-1]
    inside, outside = made.instructions()
    issued = made.programs * made.warps * (outside + inside * steps_of(case, tile))
    about = {"loop": inside, "outside": outside, "shared": made.made.metadata.shared}
    return {"tile": asdict(tile), "us": issued / FULL_RATE * 1e6, **about}


def rank(case: Case, tiles: Sequence[Tile], pool: ProcessPoolExecutor) -> list[dict[str, Any]]:
    rows = list(pool.map(count, [case] * len(tiles), tiles, chunksize=4))
    return sorted((row for row in rows if row["us"] < math.inf), key=lambda row: float(row["us"]))


def best_of_each_kind(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of rows in their order, the first of every span, warps and rows; then the second of each, and so on."""
    kinds: dict[tuple[int, ...], int] = {}
    places = []
    for row in rows:
        kind = (row["tile"]["span"], row["tile"]["warps"], row["tile"]["rows"])
        kinds[kind] = kinds.get(kind, 0) + 1
        places.append(kinds[kind])
    return [row for _, row in sorted(zip(places, rows, strict=True), key=lambda each: each[0])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("cases", nargs="+", help="NET:BATCH:PRECISION[:NETWORKS]")
    parser.add_argument("--layers", help="numbers from 1, with commas between; all unless told")
    parser.add_argument("--kernels", default="forward,inputs")
    parser.add_argument("--most", type=int, default=120, help="tiles of a kernel, drawn at random from all that fit")
    parser.add_argument("--keep", type=int, default=36, help="tiles to keep of each kernel")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    cases = [case for text in options.cases for case in cases_of(text) if case.kernel in options.kernels.split(",")]
    if options.layers:
        cases = [case for case in cases if case.layer + 1 in map(int, options.layers.split(","))]
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    # Spawned: a fork of a process whose threads have computed something may wait for them for ever.
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn")) as pool:
        for case in cases:
            tiles = tiles_of(case)
            random.Random(str(case)).shuffle(tiles)
            rows = rank(case, tiles[: options.most], pool)
            found[str(case)] = best_of_each_kind(rows)[: options.keep]
            options.out.write_text(json.dumps(found, indent=1) + "\n")
            print(
                f"{case}: {len(tiles)} tiles",
                *(f"{row['us']:.1f} {row['tile']}" for row in rows[:3]),
                sep="\n  ",
                flush=True,
            )


if __name__ == "__main__":
    main()
