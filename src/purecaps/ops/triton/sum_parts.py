# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""Weight gradients are made in parts, by programs side by side; here the parts are added up, in order."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device
from purecaps.ops.triton.parts import divided
from purecaps.ops.triton.plan import FILL
from purecaps.ops.triton.problem import power_of_two


@triton.jit
def sum_parts_kernel(
    parts_ptr,
    sum_ptr,
    count,
    splits,
    sum_z,
    COUNT: tl.constexpr,
    KW: tl.constexpr,
    N: tl.constexpr,
    O: tl.constexpr,
    P: tl.constexpr,
    S_I: tl.constexpr,
    S_J: tl.constexpr,
    S_N: tl.constexpr,
    S_O: tl.constexpr,
    S_P: tl.constexpr,
    TURNED: tl.constexpr,
    NUMBERS: tl.constexpr,
    PARTS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    at = tl.program_id(0) * NUMBERS + tl.arange(0, NUMBERS)
    z = tl.program_id(1).to(tl.int64)
    own = tl.num_programs(1)  # networks
    wait_for_inputs(AHEAD)
    total = tl.zeros((NUMBERS,), dtype=tl.float32)
    for first in range(0, splits, PARTS):
        part = first + tl.arange(0, PARTS)
        mask = (part < splits)[:, None] & (at < count)[None, :]
        rows = (part.to(tl.int64) * own + z) * count
        total += tl.sum(tl.load(parts_ptr + rows[:, None] + at[None, :], mask=mask, other=0.0), axis=0)
    to = at
    if TURNED:
        rest, p = divided(at, P, COUNT + NUMBERS, 1)
        rest, o = divided(rest, O, COUNT + NUMBERS, 1)
        rest, n = divided(rest, N, COUNT + NUMBERS, 1)
        i, j = divided(rest, KW, COUNT + NUMBERS, 1)
        to = i * S_I + j * S_J + n * S_N + o * S_O + p * S_P
    tl.store(sum_ptr + z * sum_z + to, total.to(sum_ptr.dtype.element_ty), mask=at < count)


def sum_parts(parts: Tensor, total: Tensor) -> None:
    """Writes the sum of the rows of `parts` [splits, count] into the memory of `total`, number by number."""
    _launch(parts, total, total.numel(), networks=1, turned={})


def sum_turned_parts(parts: Tensor, total: Tensor) -> None:
    """The same for a gradient `total` [Z, kh, kw, C, O, g, n, p], C = g = 1, in any order of memory.

    Args:
        parts: [splits, Z, kh, kw, n, O, p].
        total: memory for the sum.
    """
    Z, _, kw, _, O, _, n, p = total.shape
    of_row, of_column, _, of_capsule, _, of_n, of_p = total.stride()[1:]
    turned = {
        "KW": kw,
        "N": n,
        "O": O,
        "P": p,
        "S_I": of_row,
        "S_J": of_column,
        "S_N": of_n,
        "S_O": of_capsule,
        "S_P": of_p,
    }
    _launch(parts, total, total.numel() // Z, networks=Z, turned=turned)


@on_its_device
def _launch(parts: Tensor, total: Tensor, count: int, networks: int, turned: dict[str, int]) -> None:
    splits = parts.shape[0]
    # Few numbers in many parts need many programs, each with many loads under way.
    numbers = 128 if count * networks > 128 * FILL else 32
    wide = min(power_of_two(splits), 4096 // numbers)
    nothing = dict.fromkeys(("KW", "N", "O", "P", "S_I", "S_J", "S_N", "S_O", "S_P"), 1)
    sum_parts_kernel[(triton.cdiv(count, numbers), networks)](
        parts,
        total,
        count,
        splits,
        total.stride(0) if networks > 1 else 0,
        COUNT=count if turned else 1,
        **(turned or nothing),
        TURNED=bool(turned),
        NUMBERS=numbers,
        PARTS=wide,
        **launched_ahead(parts.device),
        num_warps=4,
    )
