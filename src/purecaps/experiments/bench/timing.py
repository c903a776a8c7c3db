"""How long a call takes and how much memory it needs, launched operation by operation or as a CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Call = Callable[[], object]

WARM_UP = 3
LEAST_SECONDS = 0.05
MIB = 2**20


@dataclass(frozen=True)
class Prepared:
    """A call that has been warmed up.

    Args:
        call: what to time.
        output: what it gave last; a graph writes there on every replay.
        peak_mib: the most memory it took beyond what was there before; None where that is not known.
    """

    call: Call
    output: Tensor
    peak_mib: float | None


def prepare(step: Callable[[], Tensor], device: torch.device, *, graph: bool) -> Prepared:
    """Warms a step up and captures it if asked to.

    Args:
        step: what is to be timed.
        device: where it runs.
        graph: whether to replay it as a CUDA graph.
    """
    if device.type != "cuda":
        for _ in range(WARM_UP):
            output = step()
        return Prepared(step, output, None)
    # On a stream of its own, as capturing asks for: the first calls compile kernels and make the optimiser's state.
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            output = step()
        captured.replay()
        call: Call = captured.replay
    else:
        output = step()
        call = step
    torch.cuda.synchronize()
    return Prepared(call, output, (torch.cuda.max_memory_allocated() - before) / MIB)


def milliseconds(call: Call, device: torch.device, calls: int = 1) -> tuple[float, int]:
    """The mean over as many calls as fill a twentieth of a second, and how many those were.

    Args:
        call: what to time.
        device: where it runs.
        calls: how many to begin with: as many as it took before.
    """
    while True:
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - begun
        if taken >= LEAST_SECONDS:
            return taken / calls * 1e3, calls
        calls *= 2


def kept_mib(loss_of: Callable[[], Tensor], device: torch.device) -> float | None:
    """Memory that a forward pass leaves for the backward pass, beyond weights and images; None where it is not known.

    Args:
        loss_of: the forward pass, up to the loss.
        device: where it runs.
    """
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    loss = loss_of()
    kept = torch.cuda.memory_allocated() - before
    loss.backward()  # a compiler that keeps books of its memory expects one
    return kept / MIB
