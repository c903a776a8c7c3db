from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_web import FakeWeb


@pytest.fixture
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def web(no_proxy: None) -> Iterator[FakeWeb]:
    with FakeWeb(
        truncated=lambda body: body[:-5],
        forged=lambda body: body[:-1] + bytes([body[-1] ^ 1]),
        empty=lambda body: b"",
    ) as server:
        yield server
