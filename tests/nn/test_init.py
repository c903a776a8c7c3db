"""Initial weights whose positions are correlated."""

import math

import pytest
import torch

from purecaps.errors import ConfigError
from purecaps.models import create_model
from purecaps.nn import CapsConv2d
from purecaps.nn.init import initialise
from purecaps.nn.transform import SummedTransform, Transform


def drawn(scheme, correlation, shape=(3, 2, 8, 32, 2, 16, 8)):
    weight = torch.empty(shape)
    initialise(weight, scheme, torch.Generator().manual_seed(3), correlation=correlation)
    return weight


@pytest.mark.parametrize("correlation", [0.3, 0.8])
@pytest.mark.parametrize(("scheme", "count"), [("msra", 6 * 8 * 16), ("caffe", 6 * 32 * 2 * 16 * 8)])
def test_the_variance_stays_the_schemes_and_positions_correlate_as_asked(scheme, count, correlation):
    weight = drawn(scheme, correlation)
    assert math.isclose(weight.std().item(), math.sqrt(2 / count), rel_tol=0.01)
    found = torch.corrcoef(weight.flatten(0, 1).flatten(1)) - torch.eye(6)
    asked = correlation * (1 - torch.eye(6))
    # 65,536 numbers a position: sampling moves a correlation by less than 0.004, one time in three.
    torch.testing.assert_close(found, asked, rtol=0, atol=0.02)


def test_capsules_of_different_kernels_stay_independent():
    weight = drawn("msra", 0.8).mean(dim=(0, 1))  # the shared part, of [C, O, g, n, p]
    for axis in (0, 1):
        rows = weight.movedim(axis, 0).flatten(1)
        others = torch.corrcoef(rows)[~torch.eye(len(rows), dtype=torch.bool)]
        assert others.abs().mean() < 1.5 * math.sqrt(2 / (math.pi * rows.shape[1]))


def test_no_correlation_draws_the_same_weights_as_before_there_was_one():
    expected = torch.empty(3, 3, 1, 2, 1, 4, 5).normal_(
        0, math.sqrt(2 / 36), generator=torch.Generator().manual_seed(3)
    )
    assert torch.equal(drawn("msra", 0.0, expected.shape), expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: CapsConv2d(2, 3, (1, 4, 5), init_correlation=0.5),
        lambda: Transform(2, 3, 4, 5),
        lambda: SummedTransform(2, 3, 4, 5, (3, 3)),
    ],
)
def test_weights_are_drawn_on_the_cpu_also_under_another_default_device(make, monkeypatch):
    drawn, normal = [], torch.Tensor.normal_
    monkeypatch.setattr(
        torch.Tensor, "normal_", lambda self, *args, **kw: drawn.append(self) or normal(self, *args, **kw)
    )
    with torch.device("meta"):
        layer = make()
    assert layer.weight.device.type == "meta"
    assert drawn
    assert {each.device.type for each in drawn} == {"cpu"}


def test_the_option_reaches_every_layer_of_a_network():
    model = create_model("pcapsnet0", init_correlation=0.9)
    for block in model.blocks:
        rows = block.conv.weight.detach().flatten(0, 1).flatten(1)
        assert torch.corrcoef(rows).mean() > 0.75
    assert "init msra, init_correlation 0.9" in repr(model)


@pytest.mark.parametrize("correlation", [-0.1, 1.0, math.nan])
def test_a_correlation_that_cannot_be_is_refused(correlation):
    with pytest.raises(ConfigError, match=rf"init_correlation: expected a number in \[0, 1\), got {correlation}"):
        CapsConv2d(1, 1, (1, 1, 1), init_correlation=correlation)
