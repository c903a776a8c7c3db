"""The capsule convolution: what it computes, and that every implementation computes it."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purecaps.errors import ConfigError, UnknownNameError
from purecaps.ops import caps_conv2d
from purecaps.ops.conv import empty_kernel, fold_capsules, fold_kernel, unfold_images
from purecaps.testing import assert_conv_matches_reference

IMPLEMENTATIONS = ["reference", "conv", "auto"]


def capsules(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_figure_2_of_the_paper_gives_48_everywhere(impl):
    out = caps_conv2d(torch.ones(1, 1, 5, 5, 3, 3, 3), torch.ones(4, 4, 1, 1, 3, 3, 3), impl=impl)
    assert out.shape == (1, 1, 2, 2, 3, 3, 3)
    assert (out == 48).all()


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_one_output_capsule_is_a_sum_of_matrix_products(impl):
    u, w = capsules(2, 3, 5, 7, 2, 3, 5), capsules(3, 2, 3, 4, 2, 5, 1, seed=1)
    v = caps_conv2d(u, w, stride=(1, 2), padding=(0, 1), dilation=(2, 1), impl=impl)
    b, o, y, x, g = 1, 3, 0, 2, 1
    by_hand = torch.zeros(3, 1)
    for c in range(3):
        for i in range(3):
            for j in range(2):
                row, column = y * 1 + i * 2, x * 2 + j * 1 - 1
                by_hand += u[b, c, row, column, g] @ w[i, j, c, o, g]
    torch.testing.assert_close(v[b, o, y, x, g], by_hand)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_conv_matches_the_reference_in_every_precision(dtype):
    u, w = capsules(3, 2, 9, 7, 3, 2, 5, dtype=dtype), capsules(3, 2, 2, 3, 3, 5, 4, dtype=dtype, seed=1)
    assert_conv_matches_reference("conv", u, w, stride=(2, 1), padding=(1, 0))


sizes = st.integers(1, 4)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    B=sizes, C=sizes, O=sizes, g=sizes, m=sizes, n=sizes, p=sizes,
    kernel=pairs, stride=pairs, dilation=pairs, padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    spare=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)  # fmt: skip
def test_conv_matches_the_reference_on_any_shape(B, C, O, g, m, n, p, kernel, stride, dilation, padding, spare):
    height, width = (d * (k - 1) + 1 + s for d, k, s in zip(dilation, kernel, spare, strict=True))
    u, w = capsules(B, C, height, width, g, m, n), capsules(*kernel, C, O, g, n, p, seed=1)
    assert_conv_matches_reference("conv", u, w, stride=stride, padding=padding, dilation=dilation)


@pytest.mark.usefixtures("own_registry")
def test_the_oracle_notices_an_error_of_one_in_ten_thousand():
    from purecaps.ops import conv, registry

    def slightly_wrong(u, w, geometry):
        return conv.caps_conv2d(u, w, geometry) * (1 + 1e-4)

    registry.register(registry.Implementation("wrong", slightly_wrong, conv.caps_block, automatic=registry.never))
    with pytest.raises(AssertionError, match="output of 'wrong'"):
        assert_conv_matches_reference("wrong", capsules(2, 2, 5, 5, 1, 3, 4), capsules(3, 3, 2, 3, 1, 4, 5))


@pytest.mark.parametrize("impl", ["reference", "conv"])
def test_gradients_are_exact(impl):
    u = capsules(2, 2, 5, 4, 2, 2, 3, dtype=torch.float64).requires_grad_()
    w = capsules(3, 2, 2, 2, 2, 3, 2, dtype=torch.float64, seed=1).requires_grad_()

    def operation(u, w):
        return caps_conv2d(u, w, stride=(2, 1), padding=(1, 1), dilation=(1, 2), impl=impl)

    assert torch.autograd.gradcheck(operation, (u, w))
    assert torch.autograd.gradgradcheck(operation, (u, w))


def test_layers_with_one_m_hand_capsules_on_without_a_copy():
    u = capsules(2, 1, 12, 12, 1, 4, 8)
    w = empty_kernel((3, 3, 1, 4, 1, 8, 16)).normal_()
    v = caps_conv2d(u, w, impl="conv")
    assert fold_capsules(v).data_ptr() == v.data_ptr()
    assert fold_kernel(w).data_ptr() == w.data_ptr()


def test_unfolding_undoes_folding():
    u = capsules(2, 3, 5, 4, 2, 3, 7)
    assert torch.equal(unfold_images(fold_capsules(u), m=3, g=2, O=3), u)


@pytest.mark.parametrize("impl", ["reference", "conv"])
def test_autocast_computes_in_bfloat16(impl):
    u, w = capsules(2, 2, 5, 5, 1, 3, 4), capsules(3, 3, 2, 3, 1, 4, 5, seed=1)
    exact = caps_conv2d(u, w, impl=impl)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = caps_conv2d(u, w, impl=impl)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), exact, atol=0.1, rtol=0.05)


@pytest.mark.parametrize("impl", ["reference", "conv"])
def test_compiles_as_one_graph(impl):
    u, w = capsules(2, 2, 5, 5, 1, 3, 4), capsules(3, 3, 2, 3, 1, 4, 5, seed=1)
    compiled = torch.compile(lambda u, w: caps_conv2d(u, w, stride=2, impl=impl), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u, w), caps_conv2d(u, w, stride=2, impl=impl))


@pytest.mark.parametrize("impl", ["reference", "conv"])
def test_vmap_gives_each_network_of_a_stack_its_own_kernel(impl):
    u, w = capsules(5, 2, 2, 5, 5, 1, 3, 4), capsules(5, 3, 3, 2, 3, 1, 4, 5, seed=1)
    together = torch.func.vmap(lambda u, w: caps_conv2d(u, w, impl=impl))(u, w)
    alone = torch.stack([caps_conv2d(each_u, each_w, impl=impl) for each_u, each_w in zip(u, w, strict=True)])
    torch.testing.assert_close(together, alone)


class Exported(torch.nn.Module):
    def __init__(self, impl):
        super().__init__()
        self.impl = impl

    def forward(self, u, w):
        return caps_conv2d(u, w, padding=1, impl=self.impl)


@pytest.mark.parametrize("impl", ["reference", "conv"])
def test_exports(impl):
    u, w = capsules(2, 2, 5, 5, 1, 3, 4), capsules(3, 3, 2, 3, 1, 4, 5, seed=1)
    program = torch.export.export(Exported(impl), (u, w))
    torch.testing.assert_close(program.module()(u, w), caps_conv2d(u, w, padding=1, impl=impl))


U, W = (2, 3, 5, 5, 1, 4, 6), (3, 3, 3, 2, 1, 6, 7)
KERNEL_AXES = ("kh", "kw", "C", "O", "g", "n", "p")


@pytest.mark.parametrize(
    ("u", "w", "options", "message"),
    [
        (torch.zeros(2, 3, 5, 5), torch.zeros(W), {}, r"u: expected 7 dimensions .* got 4: \[2, 3, 5, 5\]"),
        (torch.zeros(U), torch.zeros(3, 3, 1), {}, r"w: expected 7 dimensions .* got 3: \[3, 3, 1\]"),
        (torch.zeros(U), torch.zeros(3, 3, 4, 2, 1, 6, 7), {}, r"w: expected C = 3.* got C = 4"),
        (torch.zeros(U), torch.zeros(3, 3, 3, 2, 2, 6, 7), {}, r"w: expected g = 1.* got g = 2"),
        (torch.zeros(U), torch.zeros(3, 3, 3, 2, 1, 5, 7), {}, r"w: expected n = 6.* got n = 5"),
        (
            torch.zeros(U, dtype=torch.int64),
            torch.zeros(W),
            {},
            r"u: expected a floating-point tensor, got torch.int64",
        ),
        (torch.zeros(U), torch.zeros(W).double(), {}, r"w: expected dtype torch.float32, .* got torch.float64"),
        (torch.zeros(U), torch.zeros(W, device="meta"), {}, r"w: expected to be on cpu, .* got meta"),
        (torch.zeros(U), torch.zeros(W), {"stride": 0}, r"stride: expected an int >= 1 .* got 0"),
        (torch.zeros(U), torch.zeros(W), {"stride": 1.5}, r"stride: expected an int >= 1 .* got 1.5"),
        (torch.zeros(U), torch.zeros(W), {"padding": (1, -1)}, r"padding: expected an int >= 0 .* got \(1, -1\)"),
        (torch.zeros(U), torch.zeros(W), {"dilation": 3}, r"u: expected a map of at least 7x7 .* got 5x5"),
        (torch.zeros(U), torch.zeros(W), {"dilation": (1, 2, 3)}, r"dilation: .* got \(1, 2, 3\)"),
    ],
)
def test_mismatched_arguments_are_refused_by_name(u, w, options, message):
    with pytest.raises(ConfigError, match=message):
        caps_conv2d(u, w, **options)


@pytest.mark.parametrize("impl", ["reference", "conv", "cpu"])
@pytest.mark.parametrize(("tensor", "axes"), [("u", "C H W g m n"), ("w", "kh kw C O g n p")])
def test_sizes_of_nothing_are_refused_by_axis(tensor, axes, impl):
    for axis in axes.split():
        shapes = {"u": dict(zip("BCHWgmn", U, strict=True)), "w": dict(zip(KERNEL_AXES, W, strict=True))}
        shapes[tensor][axis] = 0
        u, w = (torch.zeros(tuple(shape.values())) for shape in shapes.values())
        with pytest.raises(ConfigError, match=rf"{tensor}: expected {axis} >= 1, got {axis} = 0 in {tensor} \[.*0.*\]"):
            caps_conv2d(u, w, impl=impl)


@pytest.mark.parametrize("impl", ["reference", "conv", "cpu"])
def test_an_empty_batch_is_convolved(impl):
    assert caps_conv2d(torch.zeros(0, *U[1:]), torch.zeros(W), impl=impl).shape == (0, 2, 3, 3, 1, 4, 7)


def test_an_unknown_implementation_names_the_known_ones():
    with pytest.raises(UnknownNameError, match=r"unknown impl 'convv': did you mean conv\?.*auto.*reference"):
        caps_conv2d(torch.zeros(U), torch.zeros(W), impl="convv")
