"""Choosing an implementation: explicit, announced, never another one than asked for."""

import logging

import pytest
import torch

from purecaps.errors import ConfigError
from purecaps.ops import caps_conv2d, conv, registry

U, W = torch.ones(1, 1, 3, 3, 1, 2, 3), torch.ones(3, 3, 1, 1, 1, 3, 2)


@pytest.fixture
def doubling(monkeypatch):
    """A stand-in for a fused kernel: twice the result, and only for m = 2."""

    def twice(u, w, geometry):
        return 2 * conv.caps_conv2d(u, w, geometry)

    def refuses(u, w, geometry, chunk):
        return None if u.shape[5] == 2 else f"m = {u.shape[5]}, only m = 2 is covered"

    first = registry.Implementation("doubling", twice, conv.caps_block, refuses)
    monkeypatch.setattr(registry, "_IMPLEMENTATIONS", {"doubling": first, **registry._IMPLEMENTATIONS})


@pytest.mark.usefixtures("doubling")
def test_auto_takes_the_first_that_does_not_refuse():
    assert (caps_conv2d(U, W) == 54).all()
    assert (caps_conv2d(torch.ones(1, 1, 3, 3, 1, 5, 3), W) == 27).all()


@pytest.mark.usefixtures("doubling")
def test_asking_by_name_for_what_is_not_covered_is_an_error_with_the_reason():
    with pytest.raises(ConfigError, match=r"'doubling' does not cover this problem \(m = 5, only m = 2 is covered\)"):
        caps_conv2d(torch.ones(1, 1, 3, 3, 1, 5, 3), W, impl="doubling")


def test_a_name_is_given_once():
    with pytest.raises(ConfigError, match="expected a new implementation name, got 'conv'"):
        registry.register(registry.Implementation("conv", conv.caps_conv2d, conv.caps_block))


def test_auto_says_once_what_it_took(caplog, monkeypatch):
    monkeypatch.setattr(registry, "_announced", set())
    with caplog.at_level(logging.INFO, logger="purecaps.ops"):
        caps_conv2d(U, W)
        caps_conv2d(U, W)
    assert [record.message for record in caplog.records] == ['impl="auto" takes cpu on cpu']
