"""The gradients of a network's first two layers in one kernel: compiled on a GPU, emulated elsewhere."""

import re
import shutil
import subprocess
from dataclasses import replace

import pytest
import torch
from cuda_emulated import SHARED, emulated_two_layers

from interpreted import DEVICE
from purecaps import Layer, PCapsNet, create_model
from purecaps.models.stack import ModelStack
from purecaps.ops.cuda import two_layers
from purecaps.ops.cuda.two_layers import TwoLayers, covers_second, image_of
from purecaps.ops.geometry import Geometry
from purecaps.ops.triton import stack
from purecaps.ops.triton.problem import Problem
from purecaps.testing import assert_close_in_norm

pytestmark = pytest.mark.usefixtures("kernels")

REGISTERS = 65536  # of a multiprocessor
# Images, the first layer's stride, the second layer's rows, capsules and their columns: with a remainder everywhere.
SHAPES = {
    "gray": ((1, 13, 16), 2, (8, 4, 16)),
    "colour": ((3, 14, 16), 2, (8, 4, 8)),
    "every pixel": ((1, 8, 7), 1, (8, 2, 16)),
    "more rows than warps": ((1, 20, 7), 1, (8, 8, 4)),
    "narrow": ((1, 13, 16), 2, (4, 1, 8)),
    "narrow inside": ((3, 14, 16), 2, (4, 2, 16)),
    "narrow outside": ((1, 8, 8), 1, (8, 2, 8)),
}


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The calls of the kernel, one item each."""
    calls, launch = [], two_layers.launch

    def counted(layers, *given):
        calls.append(layers)
        (launch if DEVICE == "cuda" else emulated_two_layers)(layers, *given)

    monkeypatch.setattr(two_layers, "launch", counted)
    monkeypatch.setattr("purecaps.ops.triton.stack.product_precision", lambda precision: "tf32")
    monkeypatch.setattr("purecaps.ops.triton.early.NARROW", True)
    if DEVICE == "cpu":
        monkeypatch.setattr("purecaps.ops.cuda.device.missing", lambda device: None)
        monkeypatch.setattr("purecaps.ops.cuda.two_layers.make_kernel", lambda *given, **more: None)
        monkeypatch.setattr("purecaps.ops.cuda.device.shared_memory", lambda device: SHARED)
        # A block has several images.
        monkeypatch.setattr("purecaps.ops.cuda.device.multiprocessors", lambda device: 2)
    return calls


def network(shape, impl="triton"):
    in_shape, stride, (rows, capsules, columns) = SHAPES[shape]
    torch.manual_seed(0)
    layers = [Layer(1, None, 4 * rows, stride=stride), Layer(capsules, rows, columns), Layer(None, columns, 4)]
    return PCapsNet(layers, in_shape=in_shape, num_classes=3, impl=impl).to(DEVICE)


def images(shape, batch=3):
    return torch.rand(batch, *SHAPES[shape][0], generator=torch.Generator().manual_seed(1)).to(DEVICE)


def gradients(model, pictures, *, of_pictures=False):
    pictures = pictures.detach().requires_grad_(of_pictures)
    # Linear in the scores: of a square, the scores' own error would be in the gradient once more.
    loss = (model(pictures) * torch.tensor([0.7, -0.2, 0.4], device=DEVICE)).sum()
    return torch.autograd.grad(loss, [*model.parameters(), *([pictures] if of_pictures else [])])


def assert_all_close(got, true, tolerance=4e-3):  # TF32 keeps 2^-10, and cuts
    for one, other in zip(got, true, strict=True):
        assert_close_in_norm(one, other, tolerance, "gradient")


# On a GPU the forward pass is in TF32 too, and takes numbers next to zero over leaky ReLU's kink (purecaps/testing.py).
WITH_KINK = 2e-2 if DEVICE == "cuda" else 4e-3


@pytest.mark.parametrize("shape", SHAPES)
def test_weight_gradients_of_both_layers_match_the_reference(shape, launched):
    got = gradients(network(shape), images(shape))
    assert [each.first is not None for each in launched] == [True]
    assert_all_close(got, gradients(network(shape, "reference").double(), images(shape).double()), WITH_KINK)


@pytest.mark.parametrize("shape", ["every pixel", "narrow"])
def test_where_images_need_a_gradient_the_first_layer_is_left_to_its_own_kernels(shape, launched):
    got = gradients(network(shape), images(shape), of_pictures=True)
    assert [each.first for each in launched] == [None]
    true = gradients(network(shape, "reference").double(), images(shape).double(), of_pictures=True)
    assert_all_close(got, true, WITH_KINK)


def test_narrow_layers_have_several_blocks_on_a_multiprocessor(launched, monkeypatch):
    monkeypatch.setattr("purecaps.ops.cuda.device.multiprocessors", lambda device: 1)
    got = gradients(network("narrow"), images("narrow"))
    assert [(each.at_once, each.blocks(1)) for each in launched] == [(3, 3)]
    assert_all_close(got, gradients(network("narrow", "reference").double(), images("narrow").double()), WITH_KINK)


@pytest.mark.parametrize(
    ("net", "networks", "batch", "expected"),
    [("pcapsnet2", 1, 128, 1), ("pcapsnet2", 10, 128, 3), ("pcapsnet2", 1, 300, 2), ("pcapsnet0", 10, 128, 1)],
)
def test_blocks_share_a_multiprocessor_where_there_are_images_and_memory_for_them(net, networks, batch, expected):
    layers = layers_of(net, batch)
    layers = replace(layers, second=replace(layers.second, Z=networks)).side_by_side(SHARED, 132)
    assert layers.at_once == expected


# Triton's interpreter multiplies the bit patterns of bfloat16.
DTYPES = [(torch.float32, False), (torch.float16, True)]
if DEVICE == "cuda":
    DTYPES += [(torch.float32, True), (torch.float16, False), (torch.bfloat16, False), (torch.bfloat16, True)]


@pytest.mark.parametrize(("dtype", "of_pictures"), DTYPES, ids=str)
def test_gradients_match_those_of_a_kernel_for_each_layer(dtype, of_pictures, launched, monkeypatch):
    """After the same forward pass, so that the kink is passed on the same side."""

    def found(together):
        monkeypatch.setattr("purecaps.ops.triton.early.TOGETHER", together)
        with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
            return gradients(network("every pixel"), images("every pixel"), of_pictures=of_pictures)

    got = found(together=True)
    assert [(each.first is None, each.dtype) for each in launched] == [(of_pictures, dtype)]
    # The others round the gradient between the layers to eight bits.
    assert_all_close(got, found(together=False), 8e-3 if dtype == torch.bfloat16 else 4e-3)
    assert len(launched) == 1


def test_pixels_whose_numbers_lie_side_by_side_are_read_where_they_are(launched):
    colour = images("colour")
    got = gradients(network("colour"), colour.contiguous(memory_format=torch.channels_last))
    assert launched[0].first.strides[2] == 1
    assert_all_close(got, gradients(network("colour"), colour))


def test_images_with_gaps_between_them_are_left_to_the_first_layers_own_kernels(launched):
    apart = images("every pixel", 6)[::2]
    assert_all_close(gradients(network("every pixel"), apart), gradients(network("every pixel"), apart.clone()))
    assert [each.first is None for each in launched] == [True, False]


def test_networks_side_by_side_have_each_ones_gradients(launched):
    networks = [network("every pixel") for _ in range(2)]
    with torch.no_grad():
        for parameter in networks[1].parameters():
            parameter.mul_(0.7)
    pictures = torch.stack([images("every pixel"), images("every pixel").flip(0)])
    both = ModelStack(networks)
    got = torch.autograd.grad(both.radii(pictures).square().sum(), list(both.parameters()))
    assert len(launched) == 1
    for index, one in enumerate(networks):
        alone = torch.autograd.grad(one.radii(pictures[index]).square().sum(), list(one.parameters()))
        assert_all_close([each[index] for each in got], alone)


def test_capsules_of_zero_have_finite_gradients():
    for gradient in gradients(network("every pixel"), torch.zeros_like(images("every pixel"))):
        assert gradient.isfinite().all()


def test_the_same_batch_gives_the_same_bits():
    first, again = (gradients(network("every pixel"), images("every pixel")) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("net", "of_pictures"), [("pcapsnet2", False), ("pcapsnet2", True), ("pcapsnet4", False)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_halves_bring_the_same_as_floats_of_their_values(dtype, net, of_pictures):
    """Bit for bit: TF32 has all digits of a half."""
    layers = layers_of(net, batch=2)
    layers = replace(layers, first=None if of_pictures else layers.first)
    second, (height, width) = layers.second, layers.second.out
    n, columns, pixels = second.n, second.O * second.p, create_model(net).in_shape
    generator = torch.Generator().manual_seed(0)

    def halves(*shape):
        return torch.randn(shape, generator=generator).to(DEVICE, dtype)

    grad_v, kernel, rows = (
        halves(2, height, width, 4, columns),
        halves(9, n, columns),
        halves(2, second.H, second.W, 4, n),
    )
    lengths, images = halves(2, second.H, second.W).float().abs(), halves(2, *pixels)

    def found(number):
        parts = torch.empty(2, 9 * n * columns, device=DEVICE), torch.empty(2, 9 * pixels[0] * 4 * n, device=DEVICE)
        gradient = torch.zeros(rows.shape, device=DEVICE, dtype=number)
        maps = [each.to(number) for each in (grad_v, kernel, rows, images)]
        given = (*maps[:3], lengths, maps[3], gradient, *parts)
        two_layers.launch(replace(layers, dtype=number), 2, *given, 2, 2, 0.1)
        return parts[0], gradient if of_pictures else parts[1]

    (weights, other), (true, true_other) = found(dtype), found(torch.float32)
    assert torch.equal(weights, true)
    assert torch.equal(other, true_other.to(other.dtype))


def test_exact_products_are_left_to_the_layers_kernels(launched, monkeypatch):
    monkeypatch.setattr("purecaps.ops.triton.stack.product_precision", lambda precision: "ieee")
    gradients(network("every pixel"), images("every pixel", 1))
    assert not launched


SECOND = Problem(1, 2, 1, 13, 13, 4, 8, 3, 3, 4, 16, Geometry((1, 1), (0, 0), (1, 1)), (4, 16), 4)


@pytest.mark.parametrize(
    "change",
    [
        {"C": 2},
        {"m": 2},
        {"n": 4},
        {"O": 5},
        {"p": 5},
        {"kh": 5},
        {"geometry": Geometry((2, 2), (0, 0), (1, 1))},
        {"geometry": Geometry((1, 1), (1, 1), (1, 1))},
        {"geometry": Geometry((1, 1), (0, 0), (2, 2))},
        {"B": 0},
        {"H": 2},
    ],
    ids=str,
)
def test_another_second_layer_is_not_covered(change):
    assert covers_second(SECOND, (4, 8))
    assert not covers_second(replace(SECOND, **change), (4, 8))
    assert not covers_second(SECOND, (1, 8)), "a squash of single rows"


def test_a_first_layer_of_several_capsules_is_not_covered():
    first = Problem(1, 2, 1, 28, 28, 1, 1, 3, 3, 1, 32, Geometry((2, 2), (0, 0), (1, 1)), (1, 32), 4)
    u = torch.zeros(1, 2, 1, 28, 28, 1, 1)
    assert image_of(first, u) is not None
    assert image_of(replace(first, O=2, p=16), u) is None


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(
    ("net", "batch", "dtype"),
    [
        ("pcapsnet0", 128, torch.float32),
        ("pcapsnet0", 128, torch.bfloat16),
        ("pcapsnet2", 1280, torch.float32),
        ("pcapsnet4", 256, torch.float32),
    ],
    ids=str,
)
def test_the_compiler_finds_registers_for_all_threads(net, batch, dtype, tmp_path):
    layers = replace(layers_of(net, batch), dtype=dtype).side_by_side(SHARED, 132)
    assert layers.shared_bytes <= SHARED
    (tmp_path / "kernel.cu").write_text(layers.source())
    options = ["-std=c++17", "-arch=sm_90", "-Xptxas=-v", "-cubin", "-o", tmp_path / "out"]
    said = subprocess.run(["nvcc", *options, tmp_path / "kernel.cu"], capture_output=True, text=True, check=True).stderr
    assert int(re.search(r"(\d+) bytes spill stores", said)[1]) <= 32, "a few pointers, outside of loops"
    assert int(re.search(r"Used (\d+) registers", said)[1]) * 32 * layers.warps * layers.at_once <= REGISTERS


def layers_of(net, batch=128):
    model = create_model(net)
    channels, height, width = model.in_shape
    weights = [block.conv.weight for block in model.blocks[:2]]
    geometries = [block.conv.geometry for block in model.blocks[:2]]
    u = torch.zeros(1, batch, channels, height, width)[:, :, None].permute(0, 1, 2, 4, 5, 3)[..., None, :]
    first = stack.problem_of(u, weights[0][None].squeeze(5), geometries[0])
    inputs = torch.empty(1, batch, 1, *first.out, 4, weights[1].shape[5])
    return TwoLayers(
        stack.problem_of(inputs, weights[1][None].squeeze(5), geometries[1]), image_of(first, u), torch.float32
    )
