"""How a GPU multiplies, set for a while."""

import pytest
import torch

from purecaps.train.arithmetic import arithmetic


def flags():
    cudnn = torch.backends.cudnn
    return cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.benchmark


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True), ("bf16", True)])
def test_tf32_is_allowed_to_convolutions_and_products_alike_and_put_back(precision, allowed):
    before = flags()
    with arithmetic(precision, torch.device("cuda")):
        assert flags() == (allowed, allowed, True)
    assert flags() == before


def test_a_cpu_has_nothing_to_set():
    before = flags()
    with arithmetic("fp32", torch.device("cpu")):
        assert flags() == before
