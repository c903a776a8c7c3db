"""Capsule layers: shapes, refolding, initial weights and how they print."""

import copy
import math

import pytest
import torch
import torch.nn.utils.prune

from purecaps.errors import ConfigError, UnknownNameError
from purecaps.nn import CapsBlock, CapsConv2d, LengthHead
from purecaps.ops.activation import leaky_squash
from purecaps.ops.conv import fold_kernel


def test_weight_has_the_logical_shape_of_the_paper():
    layer = CapsConv2d(2, 5, (3, 7, 4), kernel_size=(3, 2))
    assert layer.weight.shape == (3, 2, 2, 5, 3, 7, 4)
    assert layer(torch.rand(2, 2, 6, 5, 3, 1, 7)).shape == (2, 5, 4, 4, 3, 1, 4)


def test_a_layer_refolds_the_capsules_it_is_given():
    first = CapsBlock(1, 1, (1, 1, 16), stride=2)
    second = CapsBlock(1, 3, (1, 4, 6))
    out = second(first(torch.rand(2, 1, 28, 28, 1, 1, 1)))
    assert out.shape == (2, 3, 11, 11, 1, 4, 6)


def test_capsules_that_cannot_be_refolded_are_refused():
    with pytest.raises(ConfigError, match=r"multiple of g\*n = 1\*6 = 6 numbers.*got 1x4x5 = 20"):
        CapsConv2d(1, 1, (1, 6, 2))(torch.rand(1, 1, 5, 5, 1, 4, 5))


@pytest.mark.parametrize("move", [lambda m: m.double(), copy.deepcopy, lambda m: m.to("cpu").requires_grad_()])
def test_moving_a_layer_keeps_the_layout_that_conv2d_reads_without_a_copy(move):
    weight = move(CapsConv2d(2, 3, (1, 4, 5))).weight
    assert fold_kernel(weight).data_ptr() == weight.data_ptr()


@pytest.mark.parametrize(("init", "count"), [("msra", 9 * 8 * 16), ("caffe", 9 * 32 * 2 * 16 * 8)])
def test_initial_weights_have_the_variance_of_their_scheme(init, count):
    weight = CapsConv2d(8, 32, (2, 16, 8), init=init).weight
    assert math.isclose(weight.std().item(), math.sqrt(2 / count), rel_tol=0.02)


def test_one_seed_gives_one_layer():
    layer = CapsConv2d(2, 3, (1, 4, 5))
    drawn = []
    for _ in range(2):
        layer.reset_parameters(torch.Generator().manual_seed(7))
        drawn.append(layer.weight.clone())
    assert torch.equal(*drawn)


def test_a_layer_prints_in_the_notation_of_the_paper():
    assert "3x3x1x4x(1x8x16), stride 2, init msra" in repr(CapsConv2d(1, 4, (1, 8, 16), stride=2))
    assert "squash over chunks of 8" in repr(CapsBlock(1, 4, (1, 8, 16), squash_chunk=8))
    assert "padding 1x2" in repr(CapsConv2d(1, 4, (1, 8, 16), padding=(1, 2)))


def test_block_is_convolution_then_leaky_relu_then_squash():
    block = CapsBlock(2, 3, (1, 4, 5), stride=2, negative_slope=0.2)
    u = torch.randn(2, 2, 7, 7, 1, 3, 4)
    v = torch.nn.functional.leaky_relu(block.conv(u), 0.2)
    length = v.flatten(-3).norm(dim=-1)[..., None, None, None]
    torch.testing.assert_close(block(u), (1 - torch.exp(-length)) * v / length)


@pytest.mark.parametrize("squash_gradient", ["exact", "diagonal"])
@pytest.mark.parametrize("squash_chunk", [None, 5])
def test_a_hook_on_the_convolution_of_a_block_is_called_and_changes_nothing(squash_chunk, squash_gradient):
    block = CapsBlock(2, 3, (1, 4, 5), stride=2, squash_chunk=squash_chunk, squash_gradient=squash_gradient)
    u, seen = torch.randn(2, 2, 7, 7, 1, 3, 4), []
    expected = block(u)
    block.conv.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    torch.testing.assert_close(block(u), expected)
    assert seen == [expected.shape]


def test_a_block_learns_on_when_its_convolution_is_pruned():
    block, u = CapsBlock(1, 2, (1, 3, 4)), torch.randn(2, 1, 6, 6, 1, 1, 3)
    mask = torch.zeros_like(block.conv.weight)
    mask[0] = 1
    torch.nn.utils.prune.custom_from_mask(block.conv, "weight", mask)
    outputs = []
    for _ in range(3):
        outputs.append(block(u))
        outputs[-1].square().sum().backward()
        with torch.no_grad():
            block.conv.weight_orig -= block.conv.weight_orig.grad
    assert not torch.equal(outputs[0], outputs[2])


def test_head_is_the_capsules_length_pooled_over_positions():
    capsules = torch.zeros(1, 2, 1, 2, 1, 1, 2)
    capsules[0, 0, 0, 0, 0, 0] = torch.tensor([3.0, 4.0])
    capsules[0, 0, 0, 1, 0, 0] = torch.tensor([0.0, 1.0])
    assert LengthHead("mean")(capsules).tolist() == [[3, 0]]
    assert LengthHead("max")(capsules).tolist() == [[5, 0]]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: CapsConv2d(0, 1, (1, 1, 1)), ConfigError, "in_caps: expected an int >= 1, got 0"),
        (lambda: CapsConv2d(1, 1, (1, 1)), ConfigError, r"capsule: expected three sizes .* got \(1, 1\)"),
        (lambda: CapsConv2d(1, 1, 16), ConfigError, r"capsule: expected three sizes .* got 16"),
        (lambda: CapsConv2d(1, 1, (1, 0, 1)), ConfigError, r"capsule: .* got \(1, 0, 1\)"),
        (lambda: CapsConv2d(1, 1, (1, 1, 1), 0), ConfigError, "kernel_size: expected an int >= 1 .* got 0"),
        (lambda: CapsConv2d(1, 1, (1, 1, 1), init="mrsa"), UnknownNameError, r"unknown init 'mrsa': did you mean msra"),
        (lambda: CapsConv2d(1, 1, (1, 1, 1), impl="con"), UnknownNameError, r"unknown impl 'con': did you mean conv"),
        (lambda: CapsBlock(1, 1, (1, 1, 1), squash_chunk=0), ConfigError, "squash_chunk: .* got 0"),
        (lambda: CapsBlock(1, 1, (1, 1, 1), squash_chunk=1.5), ConfigError, "squash_chunk: .* got 1.5"),
        (lambda: CapsBlock(1, 1, (1, 1, 1), squash_chunk=True), ConfigError, "squash_chunk: .* got True"),
        (lambda: CapsBlock(1, 1, (1, 1, 1), negative_slope=math.inf), ConfigError, "negative_slope: .* got inf"),
        (lambda: CapsBlock(1, 1, (1, 1, 1), init=3), UnknownNameError, "unknown init 3: known: caffe, msra"),
        (lambda: CapsBlock(1, 1, (1, 1, 1), negative_slope=-1), ConfigError, "negative_slope: .* got -1"),
        (lambda: LengthHead("sum"), UnknownNameError, "unknown pool 'sum'.*max, mean"),
        (lambda: LengthHead()(torch.zeros(2, 3)), ConfigError, r"capsules: expected 7 dimensions .* got \[2, 3\]"),
        (lambda: CapsConv2d(1, 1, (1, 1, 1))(torch.zeros(2, 3)), ConfigError, r"u: expected 7 dimensions .* got 2"),
    ],
)
def test_wrong_arguments_are_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


class Silent(CapsConv2d):
    """Zeros, whatever it is given."""

    def forward(self, u):
        return torch.zeros_like(super().forward(u))


class Doubled(CapsConv2d):
    """What compressed layers do: another kernel, the same forward."""

    def kernel(self):
        return 2 * super().kernel()


def test_a_convolution_with_a_forward_of_its_own_is_called_by_its_block():
    block, u = CapsBlock(1, 2, (1, 3, 4)), torch.rand(2, 1, 5, 5, 1, 1, 3)
    block.conv = Silent(1, 2, (1, 3, 4))
    assert not block(u).any()
    block.conv = CapsConv2d(1, 2, (1, 3, 4))
    block.conv.forward = lambda u: torch.zeros(2, 2, 3, 3, 1, 1, 4)
    assert not block(u).any()
    block.conv = torch.nn.Sequential(CapsConv2d(1, 2, (1, 3, 4)), torch.nn.Identity())
    assert block(u).shape == (2, 2, 3, 3, 1, 1, 4)


def test_a_convolution_with_a_kernel_of_its_own_is_fused_with_what_follows():
    block, u = CapsBlock(1, 2, (1, 3, 4)), torch.rand(2, 1, 5, 5, 1, 1, 3)
    doubled = Doubled(1, 2, (1, 3, 4))
    doubled.weight = block.conv.weight
    expected = leaky_squash(2 * block.conv(u), 0.1, None)
    block.conv = doubled
    torch.testing.assert_close(block(u), expected)


@pytest.mark.slow
def test_a_layer_compiles_where_sizes_are_symbols():
    layer = CapsConv2d(1, 2, (1, 3, 4))
    compiled = torch.compile(layer, dynamic=True)
    for batch in (2, 3):
        u = torch.rand(batch, 1, 6, 7, 1, 1, 3)
        torch.testing.assert_close(compiled(u), layer(u))
