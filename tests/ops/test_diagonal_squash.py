"""The squash gradient of the authors' code: the diagonal of the Jacobian, and nothing but the gradient changed."""

import pytest
import torch

from purecaps import compile_inference
from purecaps.errors import ConfigError, UnknownNameError
from purecaps.models import create_model
from purecaps.models.stack import ModelStack
from purecaps.nn import CapsBlock
from purecaps.ops import caps_block, reference
from purecaps.ops.activation import leaky_squash
from purecaps.ops.geometry import Geometry

U = torch.randn(2, 2, 5, 5, 1, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
W = torch.randn(3, 3, 2, 3, 1, 4, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) / 6


def diagonal_by_jacobian(v, slope, chunk):
    """The diagonal of the exact Jacobian of one capsule's squash, times leaky ReLU's slope, for v [g, m, p]."""
    a = torch.nn.functional.leaky_relu(v, slope)

    def squash(flat):
        chunks = flat.unflatten(-1, (-1, chunk or flat.numel()))
        return reference.squash(chunks, (-1,)).flatten()

    jacobian = torch.autograd.functional.jacobian(squash, a.flatten())
    return jacobian.diagonal().view(v.shape) * torch.where(v > 0, torch.ones_like(v), slope)


@pytest.mark.parametrize("scale", [1e-9, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("chunk", [None, 2, 6, 8])
def test_the_gradient_is_the_jacobians_diagonal(chunk, scale):
    v = (scale * torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)).requires_grad_()
    upstream = torch.randn(2, 3, 4, dtype=torch.float64)
    leaky_squash(v, 0.1, chunk, "diagonal").backward(upstream)
    expected = diagonal_by_jacobian(v.detach(), 0.1, chunk) * upstream
    torch.testing.assert_close(v.grad, expected, rtol=1e-9, atol=1e-12)


def test_zero_capsules_have_the_identity_as_gradient():
    v = torch.zeros(2, 3, 4, requires_grad=True)
    leaky_squash(v, 1.0, None, "diagonal").sum().backward()
    assert (v.grad == 1).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_finite_where_squares_overflow(dtype):
    v = torch.full((1, 4, 8), 300.0, dtype=dtype, requires_grad=True)
    y = leaky_squash(v, 0.1, None, "diagonal")
    y.sum().backward()
    assert v.grad.dtype == y.dtype == dtype
    assert v.grad.isfinite().all()
    assert float(y.detach().float().norm()) == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("chunk", [None, 4])
def test_outputs_are_the_same_and_gradients_are_not(chunk):
    found = []
    for gradient in ("exact", "diagonal"):
        u = U.clone().requires_grad_()
        y = caps_block(u, W, squash_chunk=chunk, squash_gradient=gradient, impl="conv")
        y.square().sum().backward()
        found.append((y.detach(), u.grad))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-12, atol=1e-14)
    assert (found[0][1] - found[1][1]).norm() > 0.05 * found[0][1].norm()


@pytest.mark.parametrize("chunk", [None, 4])
def test_both_implementations_agree(chunk):
    found = []
    for impl in ("conv", "reference"):
        u, w = U.clone().requires_grad_(), W.clone().requires_grad_()
        y = caps_block(u, w, stride=2, squash_chunk=chunk, squash_gradient="diagonal", impl=impl)
        found.append((y.detach(), *torch.autograd.grad(y.square().sum(), (u, w))))
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("impl", ["cpu", "triton"])
def test_fused_implementations_refuse_it_by_name(impl):
    message = rf"{impl!r} does not cover this problem \(squash_gradient = 'diagonal', only 'exact' is covered\)"
    with pytest.raises(ConfigError, match=message):
        caps_block(U.repeat(20, 1, 1, 1, 1, 1, 1), W, squash_gradient="diagonal", impl=impl)
    with pytest.raises(ConfigError, match=message):
        create_model("pcapsnet2", squash_gradient="diagonal", impl=impl)(torch.rand(40, 1, 28, 28))


def test_auto_takes_an_implementation_that_has_it():
    block = CapsBlock(2, 3, (1, 4, 4), squash_gradient="diagonal").double()
    u = U.repeat(20, 1, 1, 1, 1, 1, 1).requires_grad_()
    block(u).square().sum().backward()
    again = U.repeat(20, 1, 1, 1, 1, 1, 1).requires_grad_()
    v = reference.caps_conv2d(again, block.conv.weight, Geometry())
    leaky_squash(v, 0.1, None, "diagonal").square().sum().backward()
    torch.testing.assert_close(u.grad, again.grad, rtol=1e-10, atol=1e-12)
    assert "diagonal gradient" in repr(block)


def test_networks_side_by_side_have_the_gradients_of_each_alone():
    networks = [create_model("pcapsnet1", squash_gradient="diagonal").double() for _ in range(2)]
    images = torch.rand(2, 3, 1, 28, 28, dtype=torch.float64)
    stack = ModelStack(networks)
    stack(images).square().sum().backward()
    for index, (network, batch) in enumerate(zip(networks, images, strict=True)):
        network(batch).square().sum().backward()
        stacked = stack.weights["blocks/1/conv/weight"].grad[index]
        torch.testing.assert_close(stacked, network.blocks[1].conv.weight.grad, rtol=1e-9, atol=1e-12)


def test_inference_does_not_care():
    model = create_model("pcapsnet2", squash_gradient="diagonal")
    images = torch.rand(3, 1, 28, 28)
    torch.testing.assert_close(compile_inference(model, precision="fp32")(images), model(images).detach())


def test_an_unknown_gradient_is_refused_by_name():
    with pytest.raises(UnknownNameError, match="unknown squash_gradient 'diag': did you mean diagonal"):
        CapsBlock(1, 1, (1, 1, 1), squash_gradient="diag")
    with pytest.raises(UnknownNameError, match="unknown squash_gradient 'exactly'"):
        caps_block(U, W, squash_gradient="exactly")
