"""Squash and the fused activation: values, gradients, and zero capsules."""

import math

import pytest
import torch

from purecaps.errors import ConfigError
from purecaps.ops import caps_block, reference, refold, squash
from purecaps.ops.activation import LeakySquash, leaky_squash
from purecaps.testing import assert_block_matches_reference, assert_close_in_norm


def normal(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("length", [1e-30, 1e-8, 1e-3, 0.5, 3.0, 40.0])
def test_a_length_becomes_one_minus_its_exponential(length):
    direction = normal(1, 3, 5)
    v = direction / direction.norm() * length
    out = squash(v)
    assert math.isclose(out.norm().item(), -math.expm1(-length), rel_tol=1e-12)
    torch.testing.assert_close(out / out.norm(), direction / direction.norm())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tiny", [0.0, 1e-40, 1e-20])
def test_zero_capsules_are_finite_and_their_gradient_is_the_identity(dtype, tiny):
    v = torch.full((2, 1, 3, 5), tiny, dtype=dtype, requires_grad=True)
    out = squash(v)
    upstream = normal(2, 1, 3, 5, dtype=dtype)
    out.backward(upstream)
    assert torch.equal(out, v)
    assert torch.equal(v.grad, upstream)


def test_half_precision_capsules_longer_than_the_largest_number_keep_their_direction():
    v = torch.full((1, 4, 4), 3e4, dtype=torch.float16)
    torch.testing.assert_close(squash(v), torch.full((1, 4, 4), 0.25, dtype=torch.float16))


@pytest.mark.parametrize("dim", [(-3, -2, -1), (0,), (1, 3)])
def test_gradients_of_squash_are_exact_to_second_order(dim):
    v = normal(2, 2, 3, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: squash(v, dim), (v,))
    assert torch.autograd.gradgradcheck(lambda v: squash(v, dim), (v,))


def test_squash_matches_its_specification():
    v = normal(4, 2, 3, 5)
    torch.testing.assert_close(squash(v), reference.squash(v, (-3, -2, -1)), rtol=1e-13, atol=0)


@pytest.mark.parametrize("chunk", [None, 1, 2, 3, 4, 6, 12, 24])
def test_activation_over_chunks_matches_its_specification(chunk):
    u, w = normal(2, 2, 5, 4, 2, 3, 5), normal(3, 2, 2, 3, 2, 5, 4, seed=1)
    assert_block_matches_reference("conv", u, w, stride=2, squash_chunk=chunk, tolerance=1e-14)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_block_matches_its_specification_in_every_precision(dtype, tolerance):
    u, w = normal(2, 2, 7, 5, 2, 3, 5, dtype=dtype), normal(3, 2, 2, 3, 2, 5, 4, dtype=dtype, seed=1)
    assert_block_matches_reference("conv", u, 0.3 * w, tolerance=tolerance)


@pytest.mark.parametrize("impl", ["reference", "conv"])
def test_block_gradients_are_exact(impl):
    u, w = normal(1, 2, 4, 4, 1, 2, 3).requires_grad_(), normal(2, 2, 2, 2, 1, 3, 2, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda u, w: caps_block(u, w, impl=impl), (u, w))
    assert torch.autograd.gradgradcheck(lambda u, w: caps_block(u, w, impl=impl), (u, w))


def test_the_length_that_the_activation_returns_has_an_exact_gradient_too():
    v = normal(3, 1, 2, 3).requires_grad_()
    assert torch.autograd.gradcheck(lambda v: LeakySquash.apply(v, 0.1, (-3, -2, -1)), (v,))


@pytest.mark.parametrize("impl", ["reference", "conv"])
def test_a_blank_image_gives_zero_capsules_and_finite_gradients(impl):
    u = torch.zeros(2, 1, 5, 5, 1, 1, 3, requires_grad=True)
    w = normal(3, 3, 1, 2, 1, 3, 4, dtype=torch.float32).requires_grad_()
    y = caps_block(u, w, impl=impl)
    y.sum().backward()
    assert (y == 0).all()
    assert u.grad.isfinite().all()
    assert (w.grad == 0).all()


def test_long_capsules_keep_their_gradient_where_the_output_has_rounded_to_one():
    v = (normal(8, 1, 2, 3) * 30).float().requires_grad_()
    leaky_squash(v, 0.1, None).sum().backward()
    exact = v.detach().double().requires_grad_()
    a = torch.nn.functional.leaky_relu(exact, 0.1)
    reference.squash(a, (-3, -2, -1)).sum().backward()
    assert_close_in_norm(v.grad, exact.grad, 1e-6, "gradient")


@pytest.mark.parametrize("gradient", ["exact", "diagonal"])
@pytest.mark.parametrize("scale", [1e10, 1e14, 1e18])
def test_gradients_are_right_as_long_as_squares_do_not_overflow(scale, gradient):
    v = (normal(8, 1, 2, 3) * scale).float().requires_grad_()
    upstream = normal(8, 1, 2, 3, seed=1)
    leaky_squash(v, 0.1, None, gradient).backward(upstream.float())
    exact = v.detach().double().requires_grad_()
    leaky_squash(exact, 0.1, None, gradient).backward(upstream)
    assert_close_in_norm(v.grad, exact.grad, 1e-6, "gradient")


@pytest.mark.parametrize("gradient", ["exact", "diagonal"])
def test_capsules_whose_squares_overflow_have_no_finite_gradient(gradient):
    v = torch.full((1, 2, 3), 1e20, requires_grad=True)
    leaky_squash(v, 0.1, None, gradient).sum().backward()
    assert v.grad.isnan().all()


@pytest.mark.parametrize("impl", ["reference", "conv"])
def test_block_compiles_exports_and_maps(impl):
    u, w = normal(2, 2, 5, 5, 1, 3, 4), normal(3, 3, 2, 3, 1, 4, 5, seed=1)
    expected = caps_block(u, w, impl=impl)
    compiled = torch.compile(lambda u, w: caps_block(u, w, impl=impl), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u, w), expected)

    class Block(torch.nn.Module):
        def forward(self, u, w):
            return caps_block(u, w, impl=impl)

    torch.testing.assert_close(torch.export.export(Block(), (u, w)).module()(u, w), expected)

    def loss(u, w):
        return caps_block(u, w, impl=impl).square().sum()

    stacked = torch.func.vmap(torch.func.grad(loss, argnums=1))(torch.stack([u, 2 * u]), torch.stack([w, -w]))
    torch.testing.assert_close(stacked[1], torch.func.grad(loss, argnums=1)(2 * u, -w))


@pytest.mark.slow
def test_block_compiles_to_machine_code():
    u, w = normal(2, 2, 5, 5, 1, 3, 4).requires_grad_(), normal(3, 3, 2, 3, 1, 4, 5, seed=1).requires_grad_()
    compiled = torch.compile(lambda u, w: caps_block(u, w), fullgraph=True)
    torch.testing.assert_close(
        torch.autograd.grad(compiled(u, w).square().sum(), (u, w)),
        torch.autograd.grad(caps_block(u, w).square().sum(), (u, w)),
    )


def test_refold_is_row_major_and_a_view_where_it_can_be():
    v = torch.arange(16.0).reshape(1, 1, 1, 1, 1, 1, 16)
    folded = refold(v, (1, 4, 4))
    assert folded[0, 0, 0, 0, 0, 1].tolist() == [4, 5, 6, 7]
    assert folded.data_ptr() == v.data_ptr()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: refold(torch.zeros(2, 1, 4, 5), (1, 3, 7)), r"shape: expected 20 numbers.*1x4x5.*got 1x3x7 = 21"),
        (lambda: refold(torch.zeros(2, 1, 4, 5), (1, 0, 7)), r"shape: expected three sizes .* got \(1, 0, 7\)"),
        (lambda: refold(torch.zeros(4, 5), (1, 4, 5)), r"v: expected at least the 3 capsule dimensions.*\[4, 5\]"),
        (lambda: squash(torch.zeros(2, 3), dim=2), r"dim: expected dimensions of v \[2, 3\], got 2"),
        (lambda: squash(torch.zeros(2, 3), (-1, -1)), r"dim: expected each .* of v \[2, 3\] once, got \(-1, -1\)"),
        (lambda: squash(torch.zeros(2, 3), (1, -1)), r"dim: expected each .* of v \[2, 3\] once, got \(1, -1\)"),
        (lambda: squash(torch.zeros(2, 3, dtype=torch.int64)), r"v: expected a floating-point tensor, got torch.int64"),
        (lambda: block(squash_chunk=5), r"squash_chunk: expected a divisor of the capsule's 14 numbers, got 5"),
        (lambda: block(squash_chunk=2.0), r"squash_chunk: expected a divisor of the capsule's 14 numbers, got 2.0"),
        (lambda: block(squash_chunk=True), r"squash_chunk: expected a divisor of the capsule's 14 numbers, got True"),
        (lambda: block(negative_slope=0.0), r"negative_slope: expected a finite number above 0, got 0.0"),
        (lambda: block(negative_slope=math.inf), r"negative_slope: expected a finite number above 0, got inf"),
        (lambda: block(negative_slope=math.nan), r"negative_slope: expected a finite number above 0, got nan"),
    ],
)
def test_wrong_arguments_are_refused_by_name(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def block(**options):
    return caps_block(torch.zeros(1, 1, 3, 3, 1, 2, 3), torch.zeros(3, 3, 1, 1, 1, 3, 7), **options)


def test_rounding_costs_gradients_the_root_of_what_it_costs_outputs_because_of_the_kink():
    u, w = normal(64, 1, 28, 28, 1, 1, 1), normal(3, 3, 1, 1, 1, 1, 32, seed=1) / 3
    errors = {}
    for slope in (0.1, 1.0):
        results = []
        for rounded in (False, True):
            kernel = (w.float().bfloat16().double() if rounded else w).requires_grad_()
            y = caps_block(u, kernel, stride=2, negative_slope=slope)
            results.append(torch.autograd.grad((y * normal(*y.shape, seed=2)).sum(), kernel)[0])
        errors[slope] = ((results[1] - results[0]).norm() / results[0].norm()).item()
    assert errors[0.1] > 5 * errors[1.0]
