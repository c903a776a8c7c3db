"""compile_inference with a fused kernel for each layer, interpreted on the CPU and compiled where there is a GPU."""

import pytest
import torch
from network_cases import ODD, assert_classes_match, assert_lengths_match, digits, odd_network, pretrained, true_lengths

from interpreted import DEVICE
from purecaps import Layer, PCapsNet, compile_inference

pytestmark = pytest.mark.usefixtures("kernels")

# Triton's interpreter multiplies the bit patterns of bfloat16, and knows no tf32.
PRECISIONS = ("fp32", "fp16") if DEVICE == "cpu" else ("fp32", "tf32", "fp16", "bf16")


def compiled(model, **options):
    return compile_inference(model.to(DEVICE), impl="triton", **options)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_pretrained_network_keeps_its_lengths_and_classes(precision):
    model, images = pretrained("pcapsnet1"), digits(3).to(DEVICE)
    true = true_lengths(model.to(DEVICE), images)
    assert_lengths_match(compiled(model, precision=precision)(images), true, precision)
    assert_classes_match(compiled(model, precision=precision, output="class")(images), true, precision)


@pytest.mark.parametrize("name", [name for name in ODD if name != "vectors"])
def test_other_sizes_and_strides_match_the_network(name):
    model = odd_network(name).to(DEVICE)
    images = torch.rand(3, *model.in_shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert_lengths_match(compiled(model, precision="fp32")(images), true_lengths(model, images), "fp32")


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_positions_are_pooled_as_the_network_does(pool):
    torch.manual_seed(0)
    model = PCapsNet([Layer(1, None, 4), Layer(None, 2, 3)], in_shape=(1, 7, 8), num_classes=3, pool=pool).to(DEVICE)
    images = torch.randint(0, 256, (5, 1, 7, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8).to(DEVICE)
    true = true_lengths(model, images)
    assert_lengths_match(compiled(model, precision="fp32")(images), true, "fp32")
    assert_classes_match(compiled(model, precision="fp32", output="class")(images), true, "fp32")


def test_blank_images_have_lengths_of_zero_and_the_first_class():
    blank = torch.zeros(3, 1, 28, 28, dtype=torch.uint8, device=DEVICE)
    assert (compiled(pretrained("pcapsnet1"))(blank) == 0).all()
    assert (compiled(pretrained("pcapsnet1"), output="class")(blank) == 0).all()


def test_large_batches_go_through_in_parts(monkeypatch):
    model, images = pretrained("pcapsnet1").to(DEVICE), digits(3).to(DEVICE)
    whole = {output: compiled(model, output=output)(images) for output in ("lengths", "class")}
    monkeypatch.setattr("purecaps.inference.AT_ONCE", 2)
    for output, expected in whole.items():
        torch.testing.assert_close(compiled(model, output=output)(images), expected, rtol=1e-3, atol=1e-4)


def test_auto_takes_a_kernel_for_each_layer_of_a_large_network():
    assert compile_inference(pretrained("pcapsnet0").to(DEVICE)).impl == "triton"


def test_later_changes_to_the_network_do_not_reach_it():
    model, images = pretrained("pcapsnet1").to(DEVICE), digits(1).to(DEVICE)
    function = compiled(model, precision="fp32")
    before = function(images)
    with torch.no_grad():
        model.blocks[0].conv.weight.zero_()
    assert torch.equal(function(images), before)


@pytest.mark.gpu
@pytest.mark.net
@pytest.mark.parametrize("net", ["pcapsnet0", "pcapsnet1", "pcapsnet2", "pcapsnet3"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_all_test_digits_are_classified_as_the_network_does(net, precision):
    from purecaps import data

    images = data.load("mnist").test.images.to(DEVICE)
    model = pretrained(net).to(DEVICE)
    true = true_lengths(model, images)
    assert_lengths_match(compiled(model, precision=precision)(images), true, precision)
    assert_classes_match(compiled(model, precision=precision, output="class")(images), true, precision)
