"""The fused Triton kernels compiled for the GPU, on the shapes of the paper's networks; run with `pytest -m gpu`."""

import pytest
import torch
from fused_cases import CASES, gradients, normal

from purecaps import create_model
from purecaps.models.stack import ModelStack
from purecaps.ops import caps_block, caps_conv2d, registry
from purecaps.ops import triton as fused
from purecaps.ops.geometry import Geometry
from purecaps.ops.triton import autograd, memory
from purecaps.ops.triton.plan import LEAST_TUNED, MANY, MANY_IMAGES, planned
from purecaps.ops.triton.tile import Tile
from purecaps.testing import assert_block_matches_reference, assert_close_in_norm, assert_conv_matches_reference

pytestmark = pytest.mark.gpu

BATCH = 7
# How far rounding may take the block's outputs and gradients, as a share of their norm. float32: the root of the longest
# sum (3,400 products) times its resolution; tf32 and float16 have 10 bits behind the point, bfloat16 has 7.
TOLERANCE = {"ieee": 2e-5, "tf32": 2e-3, "float16": 3e-3, "bfloat16": 2e-2}


def layers(net):
    """(net, position, shape of u, shape of w, stride) for each layer of a network."""
    model = create_model(net)
    numbers, size = model.in_shape[0], model.in_shape[1:]
    for position, block in enumerate(model.blocks):
        kh, kw, C, _, g, n, p = block.conv.weight.shape
        m = numbers // (g * n)
        stride = block.conv.geometry.stride
        yield pytest.param(
            (BATCH, C, *size, g, m, n), tuple(block.conv.weight.shape), stride, id=f"{net} layer {position + 1}"
        )
        size, numbers = block.conv.geometry.out_size(size, (kh, kw)), g * m * p


LAYERS = [layer for net in ("pcapsnet0", "pcapsnet2", "pcapsnet4") for layer in layers(net)]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Memory is NaN until a kernel writes it."""

    def nan(shape, dtype, device):
        return torch.full(shape, float("nan"), dtype=dtype, device=device)

    monkeypatch.setattr(memory, "empty", nan)


@pytest.fixture(params=["ieee", "tf32"])
def precision(request):
    return request.param


@pytest.fixture(autouse=True)
def implementations(own_registry):
    for rounding in ("ieee", "tf32"):

        def conv(u, w, geometry, rounding=rounding):
            return fused.caps_conv2d(u, w, geometry, rounding)

        def block(u, w, geometry, slope, chunk, rounding=rounding):
            return fused.caps_block(u, w, geometry, slope, chunk, rounding)

        name = f"fused {rounding}"
        registry.register(registry.Implementation(name, conv, block, fused.refuses, automatic=registry.never))


def layer_inputs(u, w, dtype=torch.float32):
    """Capsules in rows of (C, n), and a kernel that gives them a length of about 1."""
    capsules = normal(*u, dtype=dtype).cuda()
    rows = capsules.permute(0, 2, 3, 4, 5, 1, 6).contiguous().permute(0, 5, 1, 2, 3, 4, 6)
    kh, kw, C, _, _, n, p = w
    return rows, (normal(*w, seed=1) * (kh * kw * C * n * u[5] * p) ** -0.5).to("cuda", dtype)


@pytest.mark.parametrize(("u", "w", "stride"), LAYERS)
def test_float32_matches_the_reference(u, w, stride, precision):
    u, w = layer_inputs(u, w)
    # Coarse rounding meets the kink of leaky ReLU; a slope of 1 has none.
    slope = 0.1 if precision == "ieee" else 1.0
    assert_block_matches_reference(
        f"fused {precision}", u, w, stride=stride, negative_slope=slope, tolerance=TOLERANCE[precision]
    )
    if precision == "ieee":
        assert_conv_matches_reference("fused ieee", u, w, stride=stride)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("u", "w", "stride"), LAYERS)
def test_half_precision_matches_the_reference(u, w, stride, dtype):
    u, w = layer_inputs(u, w, getattr(torch, dtype))
    assert_block_matches_reference("fused tf32", u, w, stride=stride, negative_slope=1.0, tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize(("u", "w", "stride"), LAYERS)
def test_any_number_of_parts_matches_the_reference(u, w, stride):
    u, w = layer_inputs(u, w)
    with planned(splits=3):
        assert_block_matches_reference(
            "fused tf32", u, w, stride=stride, negative_slope=1.0, tolerance=TOLERANCE["tf32"]
        )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("images", [LEAST_TUNED, MANY_IMAGES])
@pytest.mark.parametrize(("u", "w", "stride"), LAYERS)
def test_measured_block_sizes_match_the_reference(u, w, stride, images, dtype):
    u, w = layer_inputs((images, *u[1:]), w, getattr(torch, dtype))
    tolerance = TOLERANCE["tf32" if dtype == "float32" else dtype]
    assert_block_matches_reference("fused tf32", u, w, stride=stride, negative_slope=1.0, tolerance=tolerance)


@pytest.mark.parametrize("net", ["pcapsnet0", "pcapsnet2", "pcapsnet2_vector"])
def test_networks_side_by_side_have_the_gradients_of_each_alone(net):
    networks, images = [], torch.rand(MANY, 64, 1, 28, 28, generator=torch.Generator().manual_seed(0)).cuda()
    for seed in range(MANY):
        torch.manual_seed(seed)
        networks.append(create_model(net, impl="triton").cuda())
        for block in networks[-1].blocks:
            block.negative_slope = 1.0  # coarse rounding meets the kink of leaky ReLU
    together = ModelStack(networks)
    radii = together.radii(images)
    got = torch.autograd.grad(radii.square().sum(), list(together.parameters()))
    for index, network in enumerate(networks):
        for block in network.blocks:
            block.conv.impl = "reference"
        lengths = network.double()(images[index].double())
        true = torch.autograd.grad(torch.log1p(-lengths).square().sum(), list(network.parameters()))
        for one, other in zip(got, true, strict=True):
            # Class by class, and piece by piece of a capsule: a part that is wrong must not hide in the norm of all.
            for part, true_part in zip(one[index].unbind(3), other.unbind(3), strict=True):
                assert_close_in_norm(part, true_part, 3e-2, net)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize(("n", "p"), [(6, 7), (7, 5), (5, 6), (3, 2), (4, 8)])
def test_capsules_of_odd_widths_match_the_reference_in_large_batches(n, p, m, dtype):
    u, w = layer_inputs((128, 1, 11, 11, 1, m, n), (3, 3, 1, 2, 1, n, p), getattr(torch, dtype))
    tolerance = TOLERANCE["tf32" if dtype == "float32" else dtype]
    for stride in (1, 2):
        assert_block_matches_reference("fused tf32", u, w, stride=stride, negative_slope=1.0, tolerance=tolerance)


# Where indices are divided by what is no power of two: ptxas 12.8 was wrong about some of these divisions.
@pytest.mark.parametrize("inner", [16, 32, 64])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize(
    ("kernel", "C", "n", "p"),
    [((3, 3), 3, 4, 8), ((3, 3), 5, 2, 2), ((5, 5), 1, 4, 4), ((2, 3), 3, 1, 16), ((7, 5), 1, 2, 6), ((3, 7), 6, 8, 1)],
)
def test_kernels_of_any_shape_match_the_reference_in_large_batches(kernel, C, n, p, m, inner):
    u, w = layer_inputs((96, C, 11, 11, 1, m, n), (*kernel, C, 2, 1, n, p))
    with planned(forward=Tile(64, 16, inner, 4, 3), inputs=Tile(64, 16, inner, 4, 3)):
        assert_block_matches_reference("fused tf32", u, w, negative_slope=1.0, tolerance=TOLERANCE["tf32"])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("span", [2, 4, 8])
@pytest.mark.parametrize(
    ("u", "w", "stride"), [layer for layer in LAYERS if layer.values[1][3] * layer.values[1][6] <= 16]
)
def test_pixels_side_by_side_match_the_reference(u, w, stride, span, dtype):
    forward = Tile(64, max(16, span * w[3] * w[6]), 16, span=span)
    inputs = Tile(64, max(16, span * w[2] * w[5]), 16, span=span)
    u, w = layer_inputs(u, w, getattr(torch, dtype))
    tolerance = TOLERANCE["tf32" if dtype == "float32" else dtype]
    with planned(forward=forward, inputs=inputs):
        assert_block_matches_reference("fused tf32", u, w, stride=stride, negative_slope=1.0, tolerance=tolerance)


@pytest.mark.parametrize(("u", "w", "stride", "padding", "dilation"), CASES)
def test_any_geometry_matches_the_reference(u, w, stride, padding, dilation):
    u, w = normal(*u).cuda(), normal(*w, seed=1).cuda()
    assert_conv_matches_reference("fused ieee", u, w, stride=stride, padding=padding, dilation=dilation)


@pytest.mark.parametrize(("m", "p", "chunk"), [(3, 16, 8), (4, 4, 8), (6, 3, 6), (5, 3, 15)])
def test_chunks_match_the_reference(m, p, chunk):
    u, w = normal(5, 2, 4, 3, 1, m, 3).cuda(), normal(2, 3, 2, 3, 1, 3, p, seed=1).cuda()
    assert_block_matches_reference("fused ieee", u, w, squash_chunk=chunk, tolerance=TOLERANCE["ieee"])


U, W = (BATCH, 4, 11, 11, 1, 4, 16), (3, 3, 4, 8, 1, 16, 8)


def block(u, w):
    return fused.caps_block(u, w, Geometry((2, 2)), 0.1, None, "tf32")


def upstream():
    return normal(BATCH, 8, 5, 5, 1, 4, 8, seed=2).cuda()


def test_same_inputs_give_the_same_bits():
    once, twice = (gradients(block, *layer_inputs(U, W), upstream()) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, twice, strict=True))


def test_blank_inputs_give_finite_gradients():
    u, w = layer_inputs(U, W)
    y, grad_u, grad_w = gradients(block, torch.zeros_like(u), w, upstream())
    assert (y == 0).all()
    assert (grad_w == 0).all()
    assert grad_u.isfinite().all()
    assert grad_u.abs().max() > 0


def test_a_cuda_graph_replays_forward_and_backward():
    u, w = layer_inputs(U, W)
    grad = upstream()

    def step():
        # Leaves of its own each time: a leaf remembers the stream of its first backward pass, and warns of another.
        leaves = u.detach().requires_grad_(), w.detach().requires_grad_()
        y = block(*leaves)
        return y.detach(), *torch.autograd.grad(y, leaves, grad)

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    u.mul_(0.5)
    graph.replay()
    for one, other in zip(captured, step(), strict=True):
        assert torch.equal(one, other)


def test_compiles_as_one_graph_with_gradients():
    u, w = layer_inputs(U, W)
    compiled = torch.compile(lambda u, w: caps_block(u, w, stride=2, impl="fused tf32").square(), fullgraph=True)
    for one, other in zip(
        gradients(compiled, u, w, upstream()),
        gradients(lambda u, w: block(u, w).square(), u, w, upstream()),
        strict=True,
    ):
        assert_close_in_norm(one, other.double(), 1e-6, "compiled")


class Exported(torch.nn.Module):
    def forward(self, u, w):
        return caps_block(u, w, stride=2, impl="fused tf32") + caps_conv2d(u, w, stride=2, impl="fused tf32")


def test_exports_with_any_batch_size():
    u, w = layer_inputs(U, W)
    program = torch.export.export(Exported(), (u, w), dynamic_shapes=({0: torch.export.Dim("batch")}, None))
    torch.testing.assert_close(program.module()(u[:3], w), Exported()(u[:3], w))


def test_operators_keep_their_contract_with_torch():
    u, w = layer_inputs(U, W)
    u, w = u.squeeze(4)[None].requires_grad_(), w[None].requires_grad_()
    geometry = [2, 2, 0, 0, 1, 1]
    options = (geometry, [4, 8], 0.1, "ieee")
    torch.library.opcheck(autograd.block_forward, (u, w, *options))
    torch.library.opcheck(autograd.conv_forward, (u, w, geometry, "ieee"))
    u, w = u.detach(), w.detach()
    y, r = autograd.block_forward(u, w, *options)
    torch.library.opcheck(autograd.block_backward, (y, r, u, w, y, r, *options, True, True))
    torch.library.opcheck(autograd.conv_backward, (y, u, w, geometry, "ieee", True, True))


def test_vmap_runs_a_stack_of_networks_in_one_launch():
    u, w = (torch.stack(each) for each in zip(*(layer_inputs(U, W) for _ in range(3)), strict=True))
    w = w * torch.tensor([1.0, 0.5, 2.0], device="cuda").view(3, 1, 1, 1, 1, 1, 1, 1)
    together = torch.func.vmap(block)(u, w)
    alone = torch.stack([block(each_u, each_w) for each_u, each_w in zip(u, w, strict=True)])
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("net", ["pcapsnet0", "pcapsnet2", "pcapsnet4"])
def test_a_network_gives_the_scores_and_gradients_of_conv2d(net):
    results = []
    for impl in ("fused ieee", "reference"):
        torch.manual_seed(0)
        dtype = torch.float64 if impl == "reference" else torch.float32
        model = create_model(net, impl=impl).to("cuda", dtype)
        images = torch.rand(BATCH, *model.in_shape, generator=torch.Generator().manual_seed(1)).to("cuda", dtype)
        scores = model(images)
        scores.square().sum().backward()
        results.append([scores.detach(), *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*results, strict=True):
        assert_close_in_norm(one, other.double(), 1e-4, net)
