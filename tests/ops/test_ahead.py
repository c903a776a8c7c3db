"""Which devices launch a kernel while the one ahead still runs."""

import pytest
import torch

import interpreted  # noqa: F401

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize(
    ("device", "capability", "driver", "expected"),
    [
        ("cuda", (9, 0), 12030, True),
        ("cuda", (10, 0), 13000, True),
        ("cuda", (8, 0), 13000, False),
        ("cuda", (9, 0), 12020, False),
        ("cpu", (9, 0), 13000, False),
    ],
)
def test_it_takes_hopper_and_a_driver_whose_graphs_know_it(device, capability, driver, expected, monkeypatch):
    from purecaps.ops.triton import ahead

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(ahead, "driver_version", lambda: driver)
    monkeypatch.setattr(ahead, "_knows", ahead._knows.__wrapped__)  # it remembers each device
    options = {"AHEAD": True, "launch_pdl": True} if expected else {"AHEAD": False}
    assert ahead.launched_ahead(torch.device(device)) == options
    monkeypatch.setattr(ahead, "AHEAD", False)
    assert ahead.launched_ahead(torch.device(device)) == {"AHEAD": False}
