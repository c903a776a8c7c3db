"""One program's share of a matrix product."""

from __future__ import annotations

from dataclasses import dataclass

from purecaps.ops.triton.problem import Problem, power_of_two


@dataclass(frozen=True)
class Tile:
    """One program's share of a matrix product.

    Args:
        rows: rows of the result, a power of two.
        columns: columns of the result, a power of two.
        inner: products summed in one step, a power of two.
        warps: warps of 32 threads.
        stages: how many steps' loads are under way at once.
        span: neighbouring pixels of a row that stand side by side as columns, a power of two. Where capsules are
            narrow, they fill columns that would be padding, and what neighbours both see is read once.
    """

    rows: int
    columns: int
    inner: int
    warps: int = 4
    stages: int = 3
    span: int = 1

    def images(self, problem: Problem) -> int:
        """How many images the rows of a tile span."""
        return images_in(self.rows, problem)


def images_in(rows: int, problem: Problem) -> int:
    """How many images so many rows (pixel, image, m) span; what is left over goes to further pixels."""
    return min(rows // problem.m_pad, power_of_two(problem.B))
