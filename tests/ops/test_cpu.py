"""The CPU's implementation, "cpu": that it computes the same, and what it leaves to "conv"."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from purecaps.errors import ConfigError
from purecaps.models import create_model
from purecaps.ops import caps_block, caps_conv2d, conv, cpu_fold, refold, registry
from purecaps.ops.geometry import Geometry
from purecaps.testing import assert_block_matches_reference, assert_close_in_norm

WAYS = {"rows are images": 0, "rows are channels": 1 << 60}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Runs a test with the rows of all capsules folded one way, then with all of them folded the other way."""
    monkeypatch.setattr(cpu_fold, "MOST_PRODUCTS", WAYS[request.param])


def capsules(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


sizes = st.integers(1, 4)
pairs = st.tuples(st.integers(1, 4), st.integers(1, 4))


@settings(deadline=None, max_examples=120, derandomize=True)
@given(
    most=st.sampled_from(list(WAYS.values())), B=st.integers(0, 5), C=sizes, O=sizes, g=st.integers(1, 3), m=sizes,
    n=sizes, p=sizes, kernel=pairs, stride=pairs, padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)), spare=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)  # fmt: skip
def test_block_matches_its_specification_on_any_shape(
    most, B, C, O, g, m, n, p, kernel, stride, padding, dilation, spare
):
    height, width = (d * (k - 1) + 1 + s for k, s, d in zip(kernel, spare, dilation, strict=True))
    u = capsules(B, C, height, width, g, m, n, dtype=torch.float64)
    w = 0.3 * capsules(*kernel, C, O, g, n, p, dtype=torch.float64, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cpu_fold, "MOST_PRODUCTS", most)
        assert_block_matches_reference("cpu", u, w, stride=stride, padding=padding, dilation=dilation, tolerance=1e-13)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("chunk", [None, 1, 2, 4, 12])
def test_block_matches_its_specification_whole_and_in_chunks(chunk):
    u, w = capsules(33, 2, 7, 5, 1, 3, 5, dtype=torch.float64), capsules(3, 2, 2, 3, 1, 5, 4, seed=1).double()
    assert_block_matches_reference("cpu", u, w, stride=(2, 1), squash_chunk=chunk, tolerance=1e-14)
    assert_block_matches_reference("cpu", u.float(), 0.3 * w.float(), squash_chunk=chunk, tolerance=1e-6)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("chunk", [None, 2, 12])
@pytest.mark.parametrize("u_shape", [(32, 2, 7, 5, 1, 3, 5), (32, 2, 3, 2, 1, 3, 5), (3, 2, 7, 5, 1, 3, 5)])
def test_block_in_bfloat16_loses_no_more_than_its_maps_are_rounded(u_shape, chunk):
    u = capsules(*u_shape, dtype=torch.bfloat16)
    w = (0.3 * capsules(3, 2, 2, 3, 1, 5, 4, seed=1)).bfloat16()
    # A slope of 1: leaky ReLU's kink would add what rounding takes to its other side. Numbers are rounded when the
    # convolution is stored, when the capsules are, and the gradient twice as well, by at most 2^-9 each.
    assert_block_matches_reference("cpu", u, w, squash_chunk=chunk, negative_slope=1.0, tolerance=4 * 2**-9)


@pytest.mark.usefixtures("way")
def test_block_gradients_are_exact_to_second_order():
    u = capsules(32, 1, 2, 3, 1, 2, 1, dtype=torch.float64).requires_grad_()
    w = capsules(2, 2, 1, 1, 1, 1, 2, dtype=torch.float64, seed=1).requires_grad_()

    def block(u, w):
        return caps_block(u, w, stride=(1, 2), padding=(1, 0), impl="cpu")

    assert torch.autograd.gradcheck(block, (u, w))
    assert torch.autograd.gradgradcheck(block, (u, w))


@pytest.mark.parametrize("wanted", ["u", "w"])
def test_the_gradient_of_one_argument_alone_can_be_differentiated(wanted):
    arguments = {"u": capsules(32, 1, 3, 4, 1, 1, 2).double(), "w": capsules(2, 3, 1, 2, 1, 2, 1).double()}
    arguments[wanted].requires_grad_()
    curvatures = []
    for impl in ("cpu", "reference"):
        y = caps_conv2d(**arguments, impl=impl).pow(3).sum()
        (slope,) = torch.autograd.grad(y, arguments[wanted], create_graph=True)
        curvatures.append(torch.autograd.grad(slope.pow(2).sum(), arguments[wanted])[0])
    assert_close_in_norm(curvatures[0], curvatures[1], 1e-13, "second gradient")


def test_a_kernel_made_from_the_capsules_has_the_right_second_gradient():
    u = capsules(32, 1, 3, 3, 1, 1, 2).double().requires_grad_()
    found = []
    for impl in ("cpu", "reference"):
        w = u.sum(dim=(0, 1)).sin()[:2, :2].reshape(2, 2, 1, 1, 1, 2, 1)
        y = caps_block(u, w, impl=impl).pow(2).sum()
        (slope,) = torch.autograd.grad(y, u, create_graph=True)
        found.append(torch.autograd.grad(slope.pow(2).sum(), u)[0])
    assert_close_in_norm(found[0], found[1], 1e-13, "second gradient")


@pytest.mark.usefixtures("way")
def test_jacobians_may_be_vectorised():
    u, w = capsules(2, 1, 3, 3, 1, 2, 3).double(), capsules(2, 2, 1, 2, 1, 3, 2, seed=1).double()
    found = {}
    for impl in ("cpu", "reference"):
        found[impl] = torch.autograd.functional.jacobian(
            lambda u, w, impl=impl: caps_block(u, w, impl=impl).flatten(), (u, w), vectorize=True
        )
    for got, true in zip(found["cpu"], found["reference"], strict=True):
        assert_close_in_norm(got, true, 1e-13, "Jacobian")


def test_many_gradients_of_one_output_may_be_asked_for_at_once():
    u, w = capsules(2, 1, 3, 3, 1, 2, 3).requires_grad_(), capsules(2, 2, 1, 2, 1, 3, 2, seed=1)
    y = caps_block(u, w, impl="cpu")
    upstream = torch.stack([y.detach(), capsules(*y.shape, seed=2)])
    (found,) = torch.func.vmap(lambda grad: torch.autograd.grad(y, u, grad, retain_graph=True))(upstream)
    (expected,) = torch.autograd.grad(y, u, upstream[1])
    torch.testing.assert_close(found[1], expected)
    assert not found.requires_grad


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-20, 1e-9])
def test_zero_and_tiny_capsules_pass_the_gradient_through_leaky_relu_alone(dtype, size):
    u = torch.full((32, 1, 2, 3, 1, 1, 2), size, dtype=dtype, requires_grad=True)
    w = torch.ones(1, 1, 1, 1, 1, 2, 3, dtype=dtype, requires_grad=True)
    y = caps_block(u, w, impl="cpu")
    upstream = capsules(*y.shape, dtype=dtype)
    y.backward(upstream)
    slope = 0.1 if size == 0 else 1.0
    torch.testing.assert_close(y, caps_conv2d(u, w, impl="reference"))
    torch.testing.assert_close(u.grad, slope * upstream.sum(-1, keepdim=True).expand(u.shape))
    assert w.grad.isfinite().all()


def test_long_capsules_keep_their_gradient_where_the_output_has_rounded_to_one():
    u, w = 30 * capsules(32, 1, 4, 4, 1, 2, 3), capsules(3, 3, 1, 2, 1, 3, 4, seed=1)
    assert_block_matches_reference("cpu", u, w, tolerance=2e-6)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("impl", ["cpu", "conv", "reference"])
def test_capsules_whose_squares_overflow_have_no_finite_gradient(impl):
    u, w = torch.full((2, 1, 2, 2, 1, 1, 2), 1e20, requires_grad=True), torch.ones(1, 1, 1, 1, 1, 2, 3)
    caps_block(u, w, impl=impl).sum().backward()
    assert u.grad.isnan().all()


@pytest.mark.usefixtures("way")
def test_the_same_inputs_give_the_same_bits():
    u, w = capsules(33, 2, 9, 9, 1, 4, 8), capsules(3, 3, 2, 4, 1, 8, 16, seed=1)
    results = []
    for _ in range(2):
        this_u, this_w = u.clone().requires_grad_(), w.clone().requires_grad_()
        y = caps_block(this_u, this_w, impl="cpu")
        y.square().sum().backward()
        results.append((y, this_u.grad, this_w.grad))
    assert all(torch.equal(first, second) for first, second in zip(*results, strict=True))


@pytest.fixture(params=[1, 2])
def threads(request):
    """Runs a test with that many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("batch", [1, 32, 33])
@pytest.mark.parametrize("squash_chunk", [None, 4])
def test_a_network_has_the_gradients_of_conv2d(squash_chunk, batch):
    found = {}
    for impl in ("cpu", "conv"):
        network = create_model("pcapsnet2", impl=impl, squash_chunk=squash_chunk)
        network.reset_parameters(torch.Generator().manual_seed(3))
        images = torch.rand(batch, 1, 28, 28, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
        network.double()(images.requires_grad_()).square().sum().backward()
        found[impl] = [images.grad, *(parameter.grad for parameter in network.parameters())]
    for got, true in zip(found["cpu"], found["conv"], strict=True):
        assert_close_in_norm(got, true, 1e-12, "gradient")


def test_an_empty_batch_goes_through_a_network_and_back():
    network = create_model("pcapsnet2", impl="cpu")
    scores = network(torch.zeros(0, 1, 28, 28))
    assert scores.shape == (0, 10)
    scores.sum().backward()
    assert all((parameter.grad == 0).all() for parameter in network.parameters())


def test_consecutive_layers_hand_capsules_on_without_a_copy():
    u, w = capsules(5, 2, 6, 6, 1, 3, 8), capsules(3, 3, 2, 5, 1, 8, 7, seed=1)
    assert caps_block(u, w, impl="cpu").permute(0, 5, 2, 3, 4, 1, 6).is_contiguous()  # [B, m, H, W, g, O, p]


def test_numbers_of_a_narrow_capsule_are_neighbours_so_that_refolding_is_a_view():
    u, w = capsules(5, 1, 6, 6, 1, 4, 4), capsules(3, 3, 1, 1, 1, 4, 8, seed=1)
    y = caps_block(u, w, impl="cpu")
    assert y.permute(0, 2, 3, 4, 1, 5, 6).is_contiguous()  # [B, H, W, g, O, m, p]
    assert refold(y, (1, 2, 16)).data_ptr() == y.data_ptr()


@pytest.mark.parametrize("refolded", [(32, 5, 4, 4, 1, 1, 21), (32, 5, 4, 4, 1, 21, 1), (32, 5, 4, 4, 1, 7, 3)])
def test_a_layer_takes_refolded_capsules_and_returns_their_gradient_in_their_memory_order(refolded):
    v = caps_block(capsules(32, 2, 6, 6, 1, 3, 4), capsules(3, 3, 2, 5, 1, 4, 7, seed=1), impl="cpu")
    u, w = v.reshape(refolded).requires_grad_(), capsules(2, 1, 5, 3, 1, refolded[-1], 2, seed=2)
    found = {}
    for impl in ("cpu", "reference"):
        (found[impl],) = torch.autograd.grad(caps_block(u, w, impl=impl).square().sum(), u)
    assert found["cpu"].stride() == u.stride()
    assert_close_in_norm(found["cpu"], found["reference"], 1e-6, "gradient")


def test_saved_tensors_may_be_moved_and_come_back_in_another_memory_order():
    u, w = capsules(32, 2, 6, 5, 1, 3, 4).requires_grad_(), capsules(3, 2, 2, 2, 1, 4, 3, seed=1)
    (expected,) = torch.autograd.grad(caps_block(u, w, impl="cpu").square().sum(), u)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone().contiguous(), lambda t: t):
        y = caps_block(u, w, impl="cpu")
    torch.testing.assert_close(torch.autograd.grad(y.square().sum(), u)[0], expected)


U, W = (5, 1, 5, 5, 1, 2, 3), (3, 3, 1, 2, 1, 3, 4)


@pytest.mark.parametrize(
    ("dtype", "device", "chunk", "reason"),
    [
        (torch.float16, "cpu", None, "float16, only float32, float64 and bfloat16"),
        (torch.float32, "meta", None, "device meta, only cpu"),
        (torch.float32, "cpu", 8, None),
        (torch.float32, "cpu", 3, "squash_chunk = 3, which in capsules of 2x4 is neither"),
    ],
)
def test_what_is_not_covered_is_refused_with_the_reason_and_auto_takes_conv(dtype, device, chunk, reason):
    u, w = (torch.zeros(shape, dtype=dtype, device=device) for shape in (U, W))
    if reason is None:
        assert registry.resolve("auto", u, w, Geometry(), chunk).name == "cpu"
        return
    with pytest.raises(ConfigError, match=f"'cpu' does not cover this problem .*{reason}"):
        registry.resolve("cpu", u, w, Geometry(), chunk)
    assert registry.resolve("auto", u, w, Geometry(), chunk).caps_conv2d is conv.caps_conv2d


def test_auto_takes_it_on_a_cpu():
    assert registry.resolve("auto", torch.zeros(U), torch.zeros(W), Geometry()).name == "cpu"


def test_autocast_computes_in_bfloat16_and_gives_gradients_in_the_precision_of_their_tensors():
    u, w = capsules(*U).requires_grad_(), capsules(*W, seed=1).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        y = caps_block(u, w, impl="cpu")
    assert torch.equal(y, caps_block(u.bfloat16(), w.bfloat16(), impl="cpu"))
    y.float().sum().backward()
    assert (y.dtype, u.grad.dtype, w.grad.dtype) == (torch.bfloat16, torch.float32, torch.float32)


def test_autocast_leaves_float64_as_it_is():
    u, w = capsules(*U).double(), capsules(*W, seed=1).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert caps_block(u, w, impl="cpu").dtype == torch.float64


def test_autocast_to_float16_is_left_to_conv():
    u, w = torch.zeros(U), torch.zeros(W)
    with torch.autocast("cpu", torch.float16):
        assert registry.resolve("auto", u, w, Geometry()).name == "conv"


def test_function_transforms_and_subclasses_are_left_to_conv():
    u, w = capsules(*U), capsules(*W, seed=1)

    def loss(w):
        return caps_block(u, w).square().sum()

    leaf = w.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(torch.func.grad(loss)(w), expected)
    stacked = torch.func.vmap(torch.func.grad(loss))(torch.stack([w, -w]))
    torch.testing.assert_close(stacked[0], expected)
    with pytest.raises(ConfigError, match="function transform"):
        torch.func.vmap(lambda u: caps_conv2d(u, w, impl="cpu"))(torch.stack([u, u]))

    class Tagged(torch.Tensor):
        pass

    with pytest.raises(ConfigError, match="subclass"):
        caps_conv2d(u.as_subclass(Tagged), w, impl="cpu")


def test_forward_mode_derivatives_are_left_to_conv():
    u, w = capsules(*U), capsules(*W, seed=1)
    _, tangent = torch.func.jvp(lambda u: caps_conv2d(u, w), (u,), (u,))
    torch.testing.assert_close(tangent, caps_conv2d(u, w))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(u, u)
        out = torch.autograd.forward_ad.unpack_dual(caps_conv2d(dual, w))
    torch.testing.assert_close(out.tangent, out.primal)


def test_traced_programs_are_left_to_conv():
    u, w = capsules(*U), capsules(*W, seed=1)
    expected = caps_block(u, w)
    compiled = torch.compile(lambda u, w: caps_block(u, w), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(u, w), expected)

    class Block(torch.nn.Module):
        def forward(self, u, w):
            return caps_block(u, w)

    program = torch.export.export(Block(), (u, w))
    assert any("conv" in str(node.target) for node in program.graph.nodes)
    torch.testing.assert_close(program.module()(u, w), expected)
