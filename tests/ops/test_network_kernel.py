"""The network in one kernel: compiled on a GPU, emulated elsewhere."""

import re
import shutil
import subprocess

import pytest
import torch
from cuda_emulated import SHARED, EmulatedNetwork
from network_cases import (
    IN_ONE,
    NETS,
    assert_classes_match,
    assert_lengths_match,
    digits,
    odd_network,
    pretrained,
    true_lengths,
)

from purecaps import compile_inference
from purecaps.inference import _layout

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REGISTERS = 65536  # of a multiprocessor

# On a GPU these are tests of it.
pytestmark = [pytest.mark.gpu] if DEVICE == "cuda" else []


@pytest.fixture(autouse=True)
def emulated(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr("purecaps.ops.cuda.device.missing", lambda device: None)
        monkeypatch.setattr("purecaps.ops.cuda.device.shared_memory", lambda device: SHARED)
        monkeypatch.setattr("purecaps.ops.cuda.network.Network", EmulatedNetwork)


def compiled(model, **options):
    return compile_inference(model.to(DEVICE), impl="network", **{"precision": "fp16", **options})


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("net", NETS)
def test_pretrained_networks_keep_their_lengths_and_classes(net, precision):
    model, images = pretrained(net), digits(7).to(DEVICE)
    true = true_lengths(model.to(DEVICE), images)
    assert_lengths_match(compiled(model, precision=precision)(images), true, precision)
    assert_classes_match(compiled(model, precision=precision, output="class")(images), true, precision)


@pytest.mark.gpu
@pytest.mark.net
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_all_test_digits_are_classified_as_the_network_does(net, precision):
    from purecaps import data

    images = data.load("mnist").test.images.to(DEVICE)
    model = pretrained(net).to(DEVICE)
    true = true_lengths(model, images)
    assert_lengths_match(compiled(model, precision=precision)(images), true, precision)
    assert_classes_match(compiled(model, precision=precision, output="class")(images), true, precision)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("name", IN_ONE)
def test_other_sizes_and_strides_match_the_network(name, precision):
    model = odd_network(name).to(DEVICE)
    images = torch.rand(5, *model.in_shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert_lengths_match(compiled(model, precision=precision)(images), true_lengths(model, images), precision)
    images = (images * 255).to(torch.uint8)
    true = true_lengths(model, images)
    assert_lengths_match(compiled(model, precision=precision)(images), true, precision)
    assert_classes_match(compiled(model, precision=precision, output="class")(images), true, precision)


@pytest.mark.parametrize("batch", [1, 5, 37])
def test_any_batch_size_gives_each_image_its_own_result(batch):
    model, images = pretrained("pcapsnet1"), digits(batch).to(DEVICE)
    together = compiled(model)(images)
    assert together.shape == (batch, 10)
    assert_lengths_match(together, true_lengths(model, images), "fp16")
    assert torch.equal(compiled(model)(images[-1:]), together[-1:])


def test_an_empty_batch_passes_through():
    model, none = pretrained("pcapsnet1"), digits(0).to(DEVICE)
    assert compiled(model)(none).shape == (0, 10)
    assert compiled(model, output="class")(none).shape == (0,)


def test_blank_images_have_lengths_of_zero_and_the_first_class():
    blank = torch.zeros(3, 1, 28, 28, dtype=torch.uint8, device=DEVICE)
    assert (compiled(pretrained("pcapsnet2"))(blank) == 0).all()
    assert (compiled(pretrained("pcapsnet2"), output="class")(blank) == 0).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_floating_images_are_read_as_they_are(dtype):
    model, images = pretrained("pcapsnet1"), (digits(2).double() / 255).to(DEVICE, dtype)
    assert_lengths_match(compiled(model)(images), true_lengths(model.to(DEVICE), images), "fp16")


def test_bytes_and_fractions_of_255_give_the_same():
    function, images = compiled(pretrained("pcapsnet1")), digits(3).to(DEVICE)
    assert torch.equal(function(images), function(images / 255))


def test_images_with_gaps_between_them_and_at_odd_addresses_are_read_right():
    function = compiled(odd_network("odd image, columns to be padded"))
    images = (torch.rand(6, 1, 27, 29, generator=torch.Generator().manual_seed(1)) * 255).to(DEVICE, torch.uint8)
    assert torch.equal(function(images[::2]), function(images[::2].clone()))
    assert torch.equal(function(images[1:]), function(images)[1:])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize("net", NETS)
def test_the_compiler_finds_registers_for_all_threads(net, tmp_path):
    layout = _layout(pretrained(net), "fp16")
    warps = layout.warps(SHARED)
    (tmp_path / "network.cu").write_text(layout.source(warps, bytes_in=True, classes_out=True))
    command = [
        "nvcc",
        "-std=c++17",
        "-arch=sm_90",
        "-Xptxas=-v",
        "-cubin",
        "-o",
        tmp_path / "out",
        tmp_path / "network.cu",
    ]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in said
    assert int(re.search(r"Used (\d+) registers", said)[1]) * 32 * warps <= REGISTERS
