"""Launches happen on the device of their tensors, whichever is the current one."""

import contextlib

import torch

from purecaps.ops.triton.device import on_its_device


def test_the_device_of_the_first_tensor_is_the_current_one_while_it_is_launched(monkeypatch):
    entered = []

    @contextlib.contextmanager
    def device_of(tensor):
        entered.append(tensor)
        yield
        entered.pop()

    monkeypatch.setattr("torch.cuda.device_of", device_of)
    launch = on_its_device(lambda first, *others: list(entered))
    one, other = torch.zeros(1), torch.zeros(2)
    assert launch(one, other)[0] is one
    assert launch([other, one])[0] is other
    assert entered == []
