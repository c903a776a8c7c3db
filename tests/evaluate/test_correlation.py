"""Correlations between a kernel's positions, and what chance alone gives."""

import math

import numpy as np
import pytest
import torch

from purecaps import create_model
from purecaps.errors import ConfigError
from purecaps.evaluate.correlation import (
    Panel,
    chance,
    correlate,
    kernels,
    matrices,
    mean_abs_of_few,
    position_rows,
)
from purecaps.evaluate.style import save
from purecaps.nn.init import initialise


def capsule_kernel(shape, correlation=0.0, seed=0):
    weight = torch.empty(shape)
    initialise(weight, "msra", torch.Generator().manual_seed(seed), correlation=correlation)
    return weight


def test_kernels_are_reshaped_as_in_the_paper():
    capsules = [tuple(position_rows(w).shape) for w in kernels(create_model("pcapsnet2"))[:2]]
    assert capsules == [(9, 16), (9, 32)]
    with torch.device("meta"):
        filters = [tuple(position_rows(w).shape) for w in kernels(create_model("cnn_baseline"))[:2]]
    assert filters == [(25, 256), (25, 65_536)]


def test_a_row_is_one_kernel_position():
    weight = torch.zeros(3, 2, 2, 5, 1, 4, 3)
    weight[2, 1] = torch.randn(2, 5, 1, 4, 3)
    assert torch.equal(position_rows(weight)[5], weight[2, 1].flatten())
    plain = torch.zeros(7, 4, 3, 2)
    plain[:, :, 2, 1] = torch.randn(7, 4)
    assert torch.equal(position_rows(plain)[5], plain[:, :, 2, 1].flatten())


def test_the_matrix_is_numpys():
    weight = capsule_kernel((3, 3, 2, 5, 1, 4, 3), 0.4)
    found = correlate(weight)
    expected = np.corrcoef(weight.reshape(9, -1).double().numpy())
    np.testing.assert_allclose(found.matrix.numpy(), expected, atol=1e-12)
    off = expected[~np.eye(9, dtype=bool)]
    assert found.mean_abs == pytest.approx(np.abs(off).mean())
    assert found.mean == pytest.approx(off.mean())


@pytest.mark.parametrize("filters", [3, 16, 32, 400])
def test_chance_is_what_independent_rows_give(filters):
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(2, 40_000, filters, generator=generator, dtype=torch.float64)
    a, b = rows - rows.mean(dim=2, keepdim=True)
    r = (a * b).sum(dim=1) / (a.norm(dim=1) * b.norm(dim=1))
    spread = r.abs().std().item() / math.sqrt(len(r))
    assert r.abs().mean().item() == pytest.approx(chance(filters), abs=4 * spread)


@pytest.mark.parametrize("filters", [16, 4096])
@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_what_is_beyond_chance_does_not_depend_on_how_many_filters_there_are(filters, correlation):
    found = [correlate(capsule_kernel((3, 3, 1, 1, 1, 1, filters), correlation, seed)) for seed in range(200)]
    mean = sum(each.squared_beyond_chance for each in found) / len(found)
    assert mean == pytest.approx(correlation**2, abs=0.03)
    if not correlation:
        assert sum(each.mean_abs for each in found) / len(found) == pytest.approx(chance(filters), rel=0.03)


def test_few_of_many_independent_filters_correlate_as_few_do():
    many = capsule_kernel((3, 3, 16, 16, 1, 4, 4))
    assert correlate(many).mean_abs == pytest.approx(chance(4096), rel=0.4)
    assert mean_abs_of_few(many, 16) == pytest.approx(chance(16), rel=0.03)


def test_few_of_correlated_filters_stay_correlated():
    many = capsule_kernel((3, 3, 16, 16, 1, 4, 4), 0.9)
    assert mean_abs_of_few(many, 16, draws=50) == pytest.approx(0.9, abs=0.03)


def test_a_picture_has_a_panel_for_each_matrix(tmp_path):
    panels = [
        Panel(f"layer {n}", "9x16", correlate(capsule_kernel((3, 3, 1, 1, 1, 1, 16), 0.5, n)).matrix) for n in range(5)
    ]
    figure = matrices(panels)
    assert [axes.get_title(loc="left") for axes in figure.axes[:5]] == [panel.title for panel in panels]
    save(figure, tmp_path / "m.png")
    assert (tmp_path / "m.png").stat().st_size > 5000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: correlate(torch.zeros(3, 3)), r"weight: expected \[kh, kw, C, O, g, n, p\] or .* got \[3, 3\]"),
        (lambda: correlate(torch.zeros(1, 1, 1, 1, 1, 1, 9)), "at least 2 kernel positions and 3 filters, got 1 and 9"),
        (lambda: correlate(torch.zeros(2, 1, 3, 3)), "at least 2 kernel positions and 3 filters, got 9 and 2"),
        (lambda: correlate(torch.ones(4, 4, 3, 3)), "weight: expected numbers that differ at every kernel position"),
        (lambda: mean_abs_of_few(torch.rand(4, 4, 3, 3), 17), "filters: expected 3 to 16, .* got 17"),
    ],
)
def test_what_cannot_be_correlated_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()
