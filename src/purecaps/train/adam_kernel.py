# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""AdamW for all parameters of a small network in one Triton launch, with enough programs to fill a GPU.

torch's fused Adam gives each program 65,536 numbers: a network of 170,784 keeps three of 132 multiprocessors busy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device

NUMBERS = 512


@triton.jit
def adam_kernel(
    parameters,
    gradients,
    means,
    squares,
    steps,
    ticket_ptr,
    rate_ptr,
    eps,
    decay,
    BETA1: tl.constexpr,
    BETA2: tl.constexpr,
    LOG_BETA1: tl.constexpr,
    LOG_BETA2: tl.constexpr,
    STARTS: tl.constexpr,
    COUNTS: tl.constexpr,
    NUMBERS: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """STARTS has each parameter's first program, COUNTS how many numbers it has.

    The program that finishes last counts the steps: all others have read theirs by then.
    """
    program = tl.program_id(0)
    wait_for_inputs(AHEAD)
    rate = tl.load(rate_ptr)
    for index in tl.static_range(len(STARTS)):
        if (program >= STARTS[index]) & (program < STARTS[index] + (COUNTS[index] + NUMBERS - 1) // NUMBERS):
            at = (program - STARTS[index]) * NUMBERS + tl.arange(0, NUMBERS)
            mask = at < COUNTS[index]
            # In float64: 1 - beta^step loses most of its digits in float32.
            step = (tl.load(steps[index]) + 1).to(tl.float64)
            start1 = (1 - tl.exp(step * LOG_BETA1)).to(tl.float32)
            start2 = tl.sqrt(1 - tl.exp(step * LOG_BETA2)).to(tl.float32)
            gradient = tl.load(gradients[index] + at, mask=mask, other=0.0)
            mean = tl.load(means[index] + at, mask=mask, other=0.0)
            square = tl.load(squares[index] + at, mask=mask, other=0.0)
            value = tl.load(parameters[index] + at, mask=mask, other=0.0)
            mean = mean + (gradient - mean) * (1 - BETA1)
            square = square * BETA2 + gradient * gradient * (1 - BETA2)
            value = value * (1 - rate * decay)
            value -= rate / start1 * mean / (tl.sqrt(square) / start2 + eps)
            tl.store(means[index] + at, mean, mask=mask)
            tl.store(squares[index] + at, square, mask=mask)
            tl.store(parameters[index] + at, value, mask=mask)
    tl.debug_barrier()
    if tl.atomic_add(ticket_ptr, 1) == tl.num_programs(0) - 1:
        for index in tl.static_range(len(steps)):
            tl.store(steps[index], tl.load(steps[index]) + 1)
        tl.store(ticket_ptr, 0)


@on_its_device
def launch_adam(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: Sequence[Tensor],
    ticket: Tensor,
    rate: Tensor,
    betas: tuple[float, float],
    eps: float,
    decay: float,
) -> None:
    """One step in place. All tensors of one parameter are float32, dense and laid out alike.

    `steps` has the steps that each parameter has taken so far; `ticket` is an int32 zero, before and after.
    """
    counts = tuple(parameter.numel() for parameter in parameters)
    starts, programs = [], 0
    for count in counts:
        starts.append(programs)
        programs += triton.cdiv(count, NUMBERS)
    adam_kernel[(programs,)](
        tuple(parameters),
        tuple(gradients),
        tuple(means),
        tuple(squares),
        tuple(steps),
        ticket,
        rate,
        eps,
        decay,
        BETA1=betas[0],
        BETA2=betas[1],
        LOG_BETA1=math.log(betas[0]) if betas[0] else -1e9,
        LOG_BETA2=math.log(betas[1]) if betas[1] else -1e9,
        STARTS=tuple(starts),
        COUNTS=counts,
        NUMBERS=NUMBERS,
        **launched_ahead(rate.device),
        num_warps=4,
    )
