# mypy: disable-error-code="import-untyped,import-not-found,no-untyped-def,untyped-decorator"
"""The end of a training step on the device: the loss and the mistakes are noted, and the next step is made ready."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from purecaps.ops.triton.ahead import launched_ahead, wait_for_inputs
from purecaps.ops.triton.device import on_its_device


@triton.jit
def tally_kernel(
    loss_ptr,
    wrong_ptr,
    losses_ptr,
    mistakes_ptr,
    step_ptr,
    rate_ptr,
    rates_ptr,
    NETWORKS: tl.constexpr,
    PADDED: tl.constexpr,
    WINDOW: tl.constexpr,
    AHEAD: tl.constexpr,
):
    each = tl.arange(0, PADDED)
    mask = each < NETWORKS
    wait_for_inputs(AHEAD)
    step = tl.load(step_ptr)
    loss = tl.load(loss_ptr + each, mask=mask, other=0.0)
    tl.store(losses_ptr + step % WINDOW * NETWORKS + each, loss, mask=mask)
    wrong = tl.load(wrong_ptr + each, mask=mask, other=0)
    tl.store(mistakes_ptr + each, tl.load(mistakes_ptr + each, mask=mask, other=0) + wrong, mask=mask)
    tl.store(step_ptr, step + 1)
    tl.store(rate_ptr, tl.load(rates_ptr + step + 1))


@on_its_device
def launch_tally(
    loss: Tensor, wrong: Tensor, losses: Tensor, mistakes: Tensor, step: Tensor, rate: Tensor, rates: Tensor
) -> None:
    """Writes a step's loss [S] into losses [window, S], adds wrong [S] to mistakes, and moves step and rate on."""
    networks = mistakes.numel()
    tally_kernel[(1,)](
        loss,
        wrong,
        losses,
        mistakes,
        step,
        rate,
        rates,
        NETWORKS=networks,
        PADDED=triton.next_power_of_2(networks),
        WINDOW=losses.shape[0],
        **launched_ahead(loss.device),
        num_warps=1,
    )
