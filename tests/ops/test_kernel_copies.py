"""Kernels of all layers copied by one launch: into half precision, and with (o, p) fastest in memory."""

import pytest
import torch

from interpreted import DEVICE
from purecaps.ops.triton import stack

pytestmark = pytest.mark.usefixtures("kernels")

# kh, kw, C, O, n, p: the second has more numbers than a program, and tiles with a remainder either way.
SIZES = [(3, 3, 1, 4, 2, 3), (3, 2, 4, 5, 8, 8), (2, 1, 5, 10, 8, 4)]


def kernels(networks):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(networks, 1, O, p, kh, kw, C, n, generator=generator).to(DEVICE).permute(0, 4, 5, 6, 2, 1, 7, 3)
        for kh, kw, C, O, n, p in SIZES
    ]


@pytest.fixture
def launched(monkeypatch):
    """How many kernels each launch copied."""
    from purecaps.ops.triton import kernel_copies

    counts, launch = [], kernel_copies._launch

    def counted(sources, *rest, **named):
        counts.append(len(sources))
        launch(sources, *rest, **named)

    monkeypatch.setattr(kernel_copies, "_launch", counted)
    return counts


def copied(weights, targets, kind):
    from purecaps.ops.triton import kernel_copies

    covers, together = getattr(kernel_copies, f"can_{kind}"), getattr(kernel_copies, f"{kind}_kernels")
    stack._copy(weights, targets, covers, together)


@pytest.mark.parametrize("networks", [1, 3])
def test_all_kernels_are_rounded_by_one_launch(networks, launched):
    weights = kernels(networks)
    halves = [torch.full_like(w, torch.nan, dtype=torch.float16) for w in weights]
    copied(weights, halves, "copy")
    assert launched == [3]
    for w, half in zip(weights, halves, strict=True):
        assert torch.equal(half, w.half())


@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_all_kernels_are_turned_by_one_launch(networks, dtype, launched):
    weights = kernels(networks)
    turned = [stack._turned(w, dtype, True).fill_(torch.nan) for w in weights]
    copied(weights, turned, "turn")
    assert launched == [3]
    for w, into in zip(weights, turned, strict=True):
        assert into.stride()[-1] == 1
        assert torch.equal(into, w.to(dtype))


def test_a_kernel_that_lies_otherwise_is_copied_by_itself(launched):
    weights = kernels(2)
    weights[1] = weights[1].contiguous()
    turned = [stack._turned(w, w.dtype, True) for w in weights]
    copied(weights, turned, "turn")
    assert launched == [2]
    for w, into in zip(weights, turned, strict=True):
        assert torch.equal(into, w)


def test_what_is_there_already_is_not_copied(launched):
    weights = kernels(1)
    copied(weights, [weights[0], torch.empty(0, device=DEVICE), weights[2]], "copy")
    assert launched == []
