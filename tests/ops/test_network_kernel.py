"""The network in one kernel: compiled on a GPU, by Triton's interpreter elsewhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from network_cases import (
    NETS,
    ODD,
    assert_classes_match,
    assert_lengths_match,
    digits,
    odd_network,
    pretrained,
    true_lengths,
)

from interpreted import DEVICE
from purecaps import compile_inference
from purecaps.inference import _stages
from purecaps.ops.triton.bands import make_bands
from purecaps.ops.triton.network import plan

pytestmark = pytest.mark.usefixtures("kernels")

# Triton's interpreter multiplies the bit patterns of bfloat16, and knows no tf32.
PRECISIONS = ("fp32", "tf32", "fp16", "bf16") if DEVICE == "cuda" else ("fp32", "fp16")


def precisions(net):
    """pcapsnet3 in float32 does not fit a multiprocessor."""
    return [precision for precision in PRECISIONS if net != "pcapsnet3" or precision in ("fp16", "bf16")]


def compiled(model, **options):
    return compile_inference(model.to(DEVICE), impl="network", **options)


@pytest.mark.parametrize(("net", "precision"), [(net, precision) for net in NETS for precision in precisions(net)])
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


def test_the_widest_network_is_exact_in_float32_where_memory_does_not_matter(monkeypatch):
    monkeypatch.setattr("purecaps.ops.triton.bands.MOST_BYTES", 2**20)
    if DEVICE == "cuda":
        pytest.skip("it does not fit a multiprocessor")
    model, images = pretrained("pcapsnet3"), digits(5)
    assert_lengths_match(compiled(model, precision="fp32")(images), true_lengths(model, images), "fp32")


@pytest.mark.parametrize("name", ODD)
def test_other_sizes_and_strides_match_the_network(name):
    model = odd_network(name).to(DEVICE)
    images = torch.rand(5, *model.in_shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert_lengths_match(compiled(model, precision="fp32")(images), true_lengths(model, images), "fp32")
    images = (images * 255).to(torch.uint8)
    assert_lengths_match(compiled(model, precision="fp32")(images), true_lengths(model, images), "fp32")


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


def test_images_with_gaps_between_them_are_read_right():
    model, images = pretrained("pcapsnet1"), digits(6).to(DEVICE)
    function = compiled(model)
    assert torch.equal(function(images[::2]), function(images[::2].clone()))


@pytest.mark.parametrize("net", NETS)
def test_products_stay_below_the_rows_that_warp_group_instructions_take(net):
    model = pretrained(net)
    bands = make_bands(_stages(model), model.in_shape, torch.float16)
    assert plan(bands).images * bands.blocks * bands.m < 64


@pytest.mark.parametrize("net", ["pcapsnet2", pytest.param("pcapsnet3", marks=pytest.mark.slow)])
def test_the_compiler_takes_the_kernel_too(net, tmp_path):
    program = Path(__file__).parent / "compile_network.py"
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(program), net], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    name, shared, carried = done.stdout.split()
    assert name == net
    assert int(shared) <= 227 * 1024, "expected a program that fits an H200's shared memory"
    # Two rows of the first map, one of the second, two of the third, and the sum. The interpreter cannot tell: the
    # compiler drops a row whose name stands for the same tensor as another's when the loop begins.
    assert int(carried) == 6, "expected every row that the next turn needs to be carried through the loop"
