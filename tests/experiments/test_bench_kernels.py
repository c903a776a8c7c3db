"""The fused kernels as a contender, in Triton's interpreter where there is no GPU."""

import dataclasses

import pytest
import torch
from bench_cases import SMALL, hurry

from interpreted import DEVICE
from purecaps.experiments.bench import CONTENDERS, Settings, Way, bench

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize("mode", ["forward", "train"])
def test_our_kernels_loss_and_optimiser_pass_the_parity_check(mode, monkeypatch):
    hurry(monkeypatch)
    monkeypatch.setattr("purecaps.experiments.bench.timing.WARM_UP", 1)
    monkeypatch.setattr("purecaps.experiments.bench.timing.milliseconds", lambda call, device, calls: (1.0, calls))
    ours = Way(dataclasses.replace(CONTENDERS["triton"], devices=(DEVICE,)))
    precision = "tf32" if DEVICE == "cuda" else "fp32"
    found = bench([SMALL], {mode: [2]}, [ours], Settings(torch.device(DEVICE), precision, rounds=1))
    assert found.failures == []
    assert found.rows[0].min_ms == 1.0
