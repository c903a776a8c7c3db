"""How a GPU multiplies, set for a while."""

import subprocess
import sys

import pytest
import torch

from purecaps.train.arithmetic import arithmetic


def flags():
    cudnn = torch.backends.cudnn
    return cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32, cudnn.benchmark


def precisions():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, matmul.fp32_precision


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True), ("bf16", True)])
def test_tf32_is_allowed_to_convolutions_and_products_alike_and_put_back(precision, allowed):
    before, precise_before = flags(), precisions()
    with arithmetic(precision, torch.device("cuda")):
        assert flags() == (allowed, allowed, True)
        assert [each == "tf32" for each in precisions()] == [allowed] * 3
    assert flags() == before
    assert precisions() == precise_before


@pytest.mark.parametrize(
    "said",
    [
        "torch.backends.fp32_precision = 'ieee'",
        "torch.backends.cudnn.conv.fp32_precision = 'ieee'",
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'",
    ],
)
def test_it_is_set_and_put_back_where_the_new_settings_of_torch_are_in_use(said):
    program = f"""
import torch
from purecaps.train.arithmetic import arithmetic
def precisions():
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return cudnn.conv.fp32_precision, matmul.fp32_precision, cudnn.rnn.fp32_precision
{said}
before = precisions()
for precision in ("fp32", "tf32"):
    with arithmetic(precision, torch.device("cuda")):
        assert [each == "tf32" for each in precisions()[:2]] == [precision == "tf32"] * 2, precisions()
    assert precisions() == before, precisions()
"""
    # What is said stays with the process, and the other tests read the old settings.
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_cpu_has_nothing_to_set():
    before = flags()
    with arithmetic("fp32", torch.device("cpu")):
        assert flags() == before
