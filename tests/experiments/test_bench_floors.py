"""The roofline, by hand."""

import pytest
from bench_cases import CPU

from purecaps import Layer, PCapsNet
from purecaps.experiments.bench.floors import Floor, Rates, floor, measured_rates

# Images 1x7x7; layer 1: 3x3 maps, one capsule of 1x6 read as 3x2; layer 2: 1x1 maps, 10 capsules of 3x5.
NETWORK = PCapsNet([Layer(1, None, 6, stride=2), Layer(None, 2, 5)], in_shape=(1, 7, 7))
MACS = (9 * 9 * 6, 1 * 9 * 10 * 3 * 2 * 5)
KERNELS = (9 * 6, 9 * 10 * 2 * 5)
MAPS = (49, 9 * 6, 10 * 15)
RATES = Rates(flop=1e6, bytes=1e5)


def test_a_forward_pass_multiplies_once_and_moves_every_map_and_kernel_once():
    found = floor(NETWORK, "forward", 5, "fp32", RATES)
    assert found.arithmetic == pytest.approx(2 * 5 * (486 + 2700) / 1e6 * 1e3)
    assert MACS == (486, 2700)
    numbers = 5 * (49 + 54) + 54 + 5 * (54 + 150) + 900
    assert found.traffic == pytest.approx(4 * numbers / 1e5 * 1e3)


def test_training_has_both_gradients_but_for_the_first_layers_input():
    found = floor(NETWORK, "train", 5, "fp32", RATES)
    assert found.arithmetic == pytest.approx(2 * 5 * (2 * MACS[0] + 3 * MACS[1]) / 1e6 * 1e3)
    u1, u2, y2 = (5 * numbers for numbers in MAPS)
    first = (u1 + KERNELS[0] + u2) + (u1 + KERNELS[0] + 2 * u2) + KERNELS[0]
    second = (u2 + KERNELS[1] + y2) + (u2 + KERNELS[1] + 2 * y2) + KERNELS[1] + u2
    assert found.traffic == pytest.approx(4 * (first + second) / 1e5 * 1e3)


def test_inference_reads_bytes_and_moves_half_as_much_in_half_precision():
    found = floor(NETWORK, "inference", 5, "fp16", RATES)
    assert found.traffic == pytest.approx((5 * 49 + 2 * (5 * 54 + 54 + 5 * (54 + 150) + 900)) / 1e5 * 1e3)


def test_the_larger_of_the_two_is_the_floor():
    assert (Floor(3.0, 2.0).ms, Floor(3.0, 2.0).by) == (3.0, "arithmetic")
    assert (Floor(3.0, 4.0).ms, Floor(3.0, 4.0).by) == (4.0, "bytes")


def test_rates_are_those_of_the_products_and_copies_that_were_timed(monkeypatch):
    monkeypatch.setattr("purecaps.experiments.bench.floors.milliseconds", lambda call, device: (100.0, 1))
    products = max(2 * 1024**3, 2 * 32 * 30**2 * 9 * 128**2)  # of matrices, of images with a kernel
    assert measured_rates(CPU, "fp32") == Rates(flop=products / 0.1, bytes=2 * 2**27 / 0.1)
