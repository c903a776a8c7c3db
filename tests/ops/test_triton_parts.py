"""Pieces of the kernels: squash's functions of a length, in full and short for arithmetic that keeps ten bits; quotients."""

import pytest
import torch

from interpreted import DEVICE  # before Triton: it may have to be interpreted

import triton  # isort: skip
import triton.language as tl  # isort: skip
from triton.runtime.interpreter import InterpretedFunction  # isort: skip

from purecaps.ops.triton.parts import divided, gradient_factors, length_and_factor

pytestmark = pytest.mark.usefixtures("kernels")

# On both sides of every place where a formula takes over from another, and far out.
LENGTHS = torch.cat([torch.logspace(-9, 4, 200, dtype=torch.float64), torch.linspace(0.015, 0.6, 100).double()])
TOLERANCE = {True: 2e-6, False: 2e-5}


@(triton.jit if DEVICE == "cuda" else InterpretedFunction)
def factors_kernel(x_ptr, out_ptr, EXACT: tl.constexpr, COUNT: tl.constexpr):
    at = tl.arange(0, COUNT)
    x = tl.load(x_ptr + at)
    r, f = length_and_factor(x * x, EXACT)
    tl.store(out_ptr + at, r)
    tl.store(out_ptr + COUNT + at, f)
    f, along, outward = gradient_factors(tl.maximum(x, 1e-10), EXACT)
    tl.store(out_ptr + 2 * COUNT + at, f)
    tl.store(out_ptr + 3 * COUNT + at, along)
    tl.store(out_ptr + 4 * COUNT + at, outward)


def computed(r, exact):
    out = torch.empty(5, 512, device=DEVICE)
    padded = torch.ones(512, device=DEVICE)
    padded[: len(r)] = r.float()
    factors_kernel[(1,)](padded, out, exact, 512)
    return out[:, : len(r)].double().cpu()


@pytest.mark.parametrize("exact", [True, False], ids=["in full", "short"])
def test_factors_are_those_of_the_formulas(exact):
    r = LENGTHS.float().double()
    f = -torch.expm1(-r) / r
    slope = torch.where(r < 1e-4, -0.5 + r / 3, (torch.exp(-r) - f) / r)  # the difference cancels even here
    true = [r, f, f, slope / (r * f * f), 1 / (r * f)]
    for got, expected in zip(computed(r, exact), true, strict=True):
        off = ((got - expected) / expected).abs()
        assert off.max() <= TOLERANCE[exact], (
            f"expected {TOLERANCE[exact]}, got {off.max():.1e} at {r[off.argmax()]:.3g}"
        )


@pytest.mark.parametrize("exact", [True, False], ids=["in full", "short"])
def test_a_capsule_of_no_length_stays_one(exact):
    length, factor = computed(torch.zeros(1), exact)[:2, 0]
    assert (length, factor) == (0, 1)


@(triton.jit if DEVICE == "cuda" else InterpretedFunction)
def divided_kernel(k_ptr, out_ptr, BY: tl.constexpr, LENGTH: tl.constexpr, COUNT: tl.constexpr):
    at = tl.program_id(0) * COUNT + tl.arange(0, COUNT)
    whole, rest = divided(tl.load(k_ptr + at), BY, LENGTH, 1)
    tl.store(out_ptr + 2 * at, whole)
    tl.store(out_ptr + 2 * at + 1, rest)


@pytest.mark.parametrize("by", [3, 5, 7, 8, 12, 160, 1001, 4095])
def test_quotients_by_any_number_are_those_of_whole_numbers(by):
    # A product with the reciprocal can be wrong only just before and at multiples; 2^20 is the most that it is used for.
    multiples = torch.arange(by, 1 << 20, by, dtype=torch.int32)
    k = torch.cat([multiples - 1, multiples])
    k = torch.nn.functional.pad(k, (0, -len(k) % (1 << 16))).to(DEVICE)
    out = torch.empty(len(k), 2, dtype=torch.int32, device=DEVICE)
    divided_kernel[(len(k) >> 16,)](k, out, by, 1 << 20, 1 << 16)
    assert torch.equal(out, torch.stack([k // by, k % by], dim=1))
