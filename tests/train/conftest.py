"""Fixtures of the training tests."""

import pytest
import tiny

from purecaps.models import registry


@pytest.fixture
def tiny_networks(monkeypatch):
    """The networks of tiny.py, by the names "normalised" and "reconstructing"."""
    for name, build in (("normalised", tiny.normalised), ("reconstructing", tiny.Reconstructing)):
        monkeypatch.setitem(registry._ENTRIES, name, registry.Entry(name, build, (1, 28, 28), "for tests"))
