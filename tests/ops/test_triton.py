"""The fused Triton kernels, run by Triton's interpreter on the CPU; test_triton_gpu.py runs them compiled."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from fused_cases import CASES, gradients, normal

from interpreted import DEVICE
from purecaps.errors import ConfigError
from purecaps.ops import caps_block, caps_conv2d, reference, refold
from purecaps.ops import triton as fused
from purecaps.ops.conv import empty_kernel
from purecaps.ops.geometry import Geometry
from purecaps.ops.triton import autograd
from purecaps.ops.triton.plan import plan, planned
from purecaps.ops.triton.problem import Problem
from purecaps.ops.triton.tile import Tile
from purecaps.testing import assert_block_matches_reference, assert_close_in_norm, assert_conv_matches_reference

if DEVICE == "cuda":
    pytest.skip("with a GPU, test_triton_gpu.py runs the compiled kernels", allow_module_level=True)


pytestmark = pytest.mark.usefixtures("kernels")


@pytest.mark.parametrize(("u", "w", "stride", "padding", "dilation"), CASES)
def test_convolution_matches_the_reference(u, w, stride, padding, dilation):
    assert_conv_matches_reference(
        "triton", normal(*u), normal(*w, seed=1), stride=stride, padding=padding, dilation=dilation
    )


@pytest.mark.parametrize(("u", "w", "stride"), [case[:3] for case in CASES if case[4] == (1, 1) or case[3] == (0, 0)])
def test_block_matches_the_reference(u, w, stride):
    assert_block_matches_reference("triton", normal(*u), normal(*w, seed=1), stride=stride, tolerance=1e-6)


@pytest.mark.parametrize(("m", "p", "chunk"), [(3, 16, 8), (4, 4, 8), (6, 3, 6), (3, 12, 4), (5, 3, 15), (1, 8, 8)])
def test_block_squashes_chunks_as_the_reference_does(m, p, chunk):
    u, w = normal(1, 2, 4, 3, 1, m, 3), normal(2, 3, 2, 3, 1, 3, p, seed=1)
    assert_block_matches_reference("triton", u, w, squash_chunk=chunk, tolerance=1e-6)


# Triton's interpreter multiplies the bit patterns of bfloat16: that precision is left to test_triton_gpu.py.
def test_half_precision_sums_in_float32():
    u, w = normal(2, 2, 5, 4, 1, 3, 4, dtype=torch.float16), normal(3, 2, 2, 3, 1, 4, 5, dtype=torch.float16, seed=1)
    assert_conv_matches_reference("triton", u, w, stride=2, padding=1)
    assert_block_matches_reference("triton", u, w, tolerance=3e-3)


U, W = (2, 2, 5, 4, 1, 3, 4), (3, 2, 2, 3, 1, 4, 5)


@pytest.mark.parametrize(
    "changes",
    [
        {"splits": 1},
        {"splits": 5, "weights": Tile(16, 16, 16)},
        {"splits": 5, "weights": Tile(64, 32, 32)},
        {"forward": Tile(16, 16, 16), "inputs": Tile(16, 16, 16), "activation": Tile(4, 8, 0)},
        {"forward": Tile(64, 32, 64), "inputs": Tile(64, 32, 64), "activation": Tile(32, 32, 0)},
    ],
)
def test_every_plan_gives_the_same_result(changes):
    with planned(**changes):
        assert_block_matches_reference("triton", normal(*U), normal(*W, seed=1), stride=2, tolerance=1e-6)
        assert_conv_matches_reference("triton", normal(*U), normal(*W, seed=1), stride=(1, 2), padding=1)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("tile", [Tile(16, 64, 16, span=4), Tile(64, 32, 64, span=2)], ids=["four", "two"])
def test_neighbouring_pixels_side_by_side_give_the_same_result(case, tile):
    u, w, geometry = normal(*case[0]), normal(*case[1], seed=1), Geometry(*case[2:])
    if w.shape[6] > 8 and tile.span == 2:
        tile = dataclasses.replace(tile, columns=64)  # room for a capsule of each
    upstream = normal(*reference.caps_block(u, w, geometry, 0.1, None).shape, seed=2)
    true = gradients(lambda u, w: reference.caps_block(u.double(), w.double(), geometry, 0.1, None), u, w, upstream)
    with planned(forward=tile, inputs=tile):
        got = gradients(lambda u, w: fused.caps_block(u, w, geometry, 0.1, None), u, w, upstream)
    for one, other in zip(got, true, strict=True):
        assert_close_in_norm(one, other, 1e-6, "span")


@pytest.mark.parametrize(
    "lay_out",
    [
        lambda u: u.permute(6, 5, 4, 3, 2, 1, 0).contiguous().permute(6, 5, 4, 3, 2, 1, 0),
        lambda u: u.permute(0, 2, 3, 5, 1, 6, 4).contiguous().permute(0, 4, 1, 2, 6, 3, 5),
        lambda u: torch.stack([u, u], dim=6)[..., 1, :],
        lambda u: u[:, :1].expand_as(u),
    ],
    ids=["reversed", "rows", "with gaps", "repeated"],
)
def test_any_memory_layout_is_read_in_place(lay_out):
    u, w = lay_out(normal(*U)), lay_out(normal(*W, seed=1).movedim(3, 0)).movedim(0, 3)
    upstream = lay_out(normal(2, 3, 2, 3, 1, 3, 5, seed=2))
    got, true = (gradients(function, u, w, upstream) for function in (fused_block, reference_block))
    for one, other in zip(got, true, strict=True):
        assert_close_in_norm(one, other, 1e-6, "layout")


def fused_block(u, w):
    return fused.caps_block(u, w, Geometry((2, 1)), 0.1, None)


def reference_block(u, w):
    return reference.caps_block(u.double(), w.double(), Geometry((2, 1)), 0.1, None)


def test_weight_gradient_has_the_layout_of_the_weight():
    w = empty_kernel(W).normal_().requires_grad_()
    fused_block(normal(*U), w).sum().backward()
    assert w.grad.stride() == w.stride()


def test_same_inputs_give_the_same_bits():
    once, twice = (gradients(fused_block, normal(*U), normal(*W), normal(2, 3, 2, 3, 1, 3, 5)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(once, twice, strict=True))


def test_refolding_between_layers_moves_no_data():
    y = fused.caps_block(normal(2, 1, 7, 7, 1, 1, 1), normal(3, 3, 1, 1, 1, 1, 16), Geometry((2, 2)), 0.1, None)
    u = refold(y, (1, 4, 4))
    assert u.data_ptr() == y.data_ptr()
    assert u.permute(0, 2, 3, 5, 1, 6, 4).is_contiguous()  # rows of (C, n)


def test_blank_inputs_give_finite_gradients_which_are_the_limit():
    u, w = torch.zeros(U), normal(*W)
    upstream = normal(2, 3, 2, 3, 1, 3, 5, seed=2)
    y, grad_u, grad_w = gradients(fused_block, u, w, upstream)
    _, true_u, _ = gradients(reference_block, u, w, upstream)
    assert (y == 0).all()
    assert (grad_w == 0).all()
    assert_close_in_norm(grad_u, true_u, 1e-6, "gradient of u")


@pytest.mark.parametrize("size", [1e-30, 1e-12, 1e-4, 0.1, 0.3, 3.0, 1e3, 1e15])
def test_capsules_of_any_length_keep_their_digits(size):
    u, upstream = normal(1, 1, 3, 3, 1, 3, 4) * size, normal(1, 2, 3, 3, 1, 3, 5, seed=2)
    w = normal(1, 1, 1, 2, 1, 4, 5, seed=1)
    got = gradients(lambda u, w: fused.caps_block(u, w, Geometry(), 0.1, None), u, w, upstream)
    true = gradients(lambda u, w: reference.caps_block(u.double(), w.double(), Geometry(), 0.1, None), u, w, upstream)
    for one, other in zip(got, true, strict=True):
        assert_close_in_norm(one, other.double(), 2e-6, f"capsules of length {size}")


def test_lengths_are_differentiable_too():
    u, w = normal(1, *U[:4], 3, 4).requires_grad_(), normal(1, *W, seed=1).requires_grad_()
    y, r = autograd.block_forward(u, w, [2, 1, 0, 0, 1, 1], [3, 5], 0.1, "ieee")
    weight_y, weight_r = normal(*y.shape), normal(*r.shape, seed=3)
    v = reference.caps_conv2d(u[0].unsqueeze(4).double(), w[0].double(), Geometry((2, 1)))
    a = torch.nn.functional.leaky_relu(v, 0.1)
    length = torch.linalg.vector_norm(a, dim=(-3, -2, -1))
    for use_y in (1, 0):
        got = torch.autograd.grad(
            (r * weight_r).sum() + (use_y * y * weight_y).sum() * use_y, (u, w), retain_graph=True
        )
        squashed = reference.squash(a, (-3, -2, -1)).squeeze(4)
        loss = (length * weight_r[0, ..., 0, 0]).sum() + use_y * (squashed * weight_y[0]).sum()
        true = torch.autograd.grad(loss, (u, w), retain_graph=True)
        for one, other in zip(got, true, strict=True):
            assert_close_in_norm(one, other.double(), 1e-6, "gradient through lengths")


def test_gradients_that_nobody_needs_are_not_computed(monkeypatch):
    def forbidden(*args, **kwargs):
        raise AssertionError("expected this gradient to be skipped")

    u, w = normal(*U), normal(*W)
    with monkeypatch.context() as patch:
        patch.setattr("purecaps.ops.triton.input_gradient.gradient_of_input", forbidden)
        fused_block(u, w.clone().requires_grad_()).sum().backward()
    with monkeypatch.context() as patch:
        patch.setattr("purecaps.ops.triton.weight_gradient.launch_weight_gradient", forbidden)
        fused_block(u.clone().requires_grad_(), w).sum().backward()


def test_an_empty_batch_passes_through():
    u, w = torch.zeros(0, *U[1:]).requires_grad_(), normal(*W).requires_grad_()
    y = fused_block(u, w)
    y.sum().backward()
    assert y.shape == (0, 3, 2, 3, 1, 3, 5)
    assert u.grad.shape == u.shape
    assert (w.grad == 0).all()


def test_operators_keep_their_contract_with_torch():
    u, w = normal(1, 2, 2, 3, 2, 3, 4).requires_grad_(), normal(1, 3, 1, 2, 3, 1, 4, 5).requires_grad_()
    geometry, norm = [2, 1, 1, 0, 1, 1], [3, 5]
    block, conv = (geometry, norm, 0.1, "ieee"), (geometry, "ieee")
    torch.library.opcheck(autograd.block_forward, (u, w, *block))
    torch.library.opcheck(autograd.conv_forward, (u, w, *conv))
    u, w = u.detach(), w.detach()
    y, r = autograd.block_forward(u, w, *block)
    for need_u, need_w in ((True, True), (False, True), (True, False)):
        torch.library.opcheck(autograd.block_backward, (y, None, u, w, y, r, *block, need_u, need_w))
        torch.library.opcheck(autograd.conv_backward, (y, u, w, *conv, need_u, need_w))


def test_compiles_as_one_graph_with_gradients():
    u, w = normal(*U).requires_grad_(), normal(*W, seed=1).requires_grad_()
    compiled = torch.compile(
        lambda u, w: caps_block(u, w, stride=2, impl="triton").square().sum(), fullgraph=True, backend="aot_eager"
    )
    got = torch.autograd.grad(compiled(u, w), (u, w))
    true = torch.autograd.grad(caps_block(u, w, stride=2, impl="reference").square().sum(), (u, w))
    torch.testing.assert_close(got, true)


class Exported(torch.nn.Module):
    def forward(self, u, w):
        return caps_block(u, w, padding=1, impl="triton") + caps_conv2d(u, w, padding=1, impl="triton")


def test_exports_with_any_batch_size():
    batch = torch.export.Dim("batch")
    program = torch.export.export(Exported(), (normal(*U), normal(*W)), dynamic_shapes=({0: batch}, None))
    assert {str(node.target) for node in program.graph.nodes} >= {"purecaps.caps_block_forward.default"}
    u, w = normal(3, *U[1:]), normal(*W)
    torch.testing.assert_close(program.module()(u, w), Exported()(u, w))


@pytest.mark.parametrize(("u_dim", "w_dim"), [(0, 0), (None, 0), (1, None)])
def test_vmap_runs_a_stack_of_networks_in_one_launch(u_dim, w_dim):
    u = normal(*U) if u_dim is None else normal(3, *U).movedim(0, u_dim)
    w = normal(*W) if w_dim is None else normal(3, *W, seed=1)
    results = []
    for impl in ("triton", "reference"):
        this_u, this_w = u.clone().requires_grad_(), w.clone().requires_grad_()
        y = torch.func.vmap(lambda u, w, impl=impl: caps_block(u, w, impl=impl), (u_dim, w_dim))(this_u, this_w)
        y.square().sum().backward()
        results.append((y.detach(), this_u.grad, this_w.grad))
    torch.testing.assert_close(*results)


def test_autocast_computes_in_half_precision():
    u, w = normal(*U), normal(*W, seed=1)
    with torch.autocast("cpu", torch.float16):
        y = caps_block(u, w, impl="triton")
    assert y.dtype == torch.float16
    assert_close_in_norm(y, caps_block(u.double(), w.double(), impl="reference"), 1e-3, "autocast")


@pytest.mark.parametrize(
    ("u", "w", "options", "reason"),
    [
        (torch.zeros(U).double(), torch.zeros(W).double(), {}, r"dtype torch.float64, only float32"),
        (torch.zeros(2, 2, 6, 5, 2, 3, 4), torch.zeros(3, 2, 2, 3, 2, 4, 5), {}, r"g = 2, only g = 1"),
        (
            torch.zeros(1, 1, 3, 3, 1, 300, 2),
            torch.zeros(3, 3, 1, 1, 1, 2, 20),
            {},
            r"capsules of 300x20, only m up to 128",
        ),
        (torch.zeros(U), torch.zeros(W), {"squash_chunk": 3}, r"squash_chunk = 3.*capsules of 3x5"),
        (torch.zeros(1).expand(2**29, 2, 5, 4, 1, 3, 4), torch.zeros(W), {}, r"42949672960 rows of capsules.*2\^31"),
        (torch.zeros(U, device="meta"), torch.zeros(W, device="meta"), {}, r"device meta, only cuda"),
    ],
    ids=["float64", "g", "large capsules", "chunks", "large batch", "device"],
)
def test_what_is_not_covered_is_refused_with_the_reason(u, w, options, reason):
    with pytest.raises(ConfigError, match=reason):
        caps_block(u, w, impl="triton", **options)


def test_the_cpu_is_refused_without_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    assert fused.refuses(torch.zeros(U), torch.zeros(W), Geometry()) == "device cpu, only cuda is covered"


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match="precision: expected one of auto, tf32, ieee, got 'fp8'"):
        fused.caps_block(torch.zeros(U), torch.zeros(W), Geometry(), 0.1, None, "fp8")


def test_without_triton_the_package_imports_and_says_what_is_missing():
    program = """
import sys
from dataclasses import replace
sys.modules["triton"] = None
import torch
from purecaps.ops import triton
from purecaps.ops.geometry import Geometry
u, w = torch.zeros(1, 1, 3, 3, 1, 2, 3), torch.zeros(3, 3, 1, 1, 1, 3, 2)
print(triton.refuses(u, w, Geometry()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "Triton is not installed\n", done.stderr


def test_the_compiler_takes_the_kernels_too(cache):
    program = Path(__file__).parent / "compile_offline.py"
    # Kept from run to run: Triton finds again only what was compiled from the same source, by the same compiler.
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache.mkdir("triton"))}
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    compiled = [line.split() for line in done.stdout.splitlines()]
    assert len({name for name, *_ in compiled}) == 10
    assert all(int(shared) <= 227 * 1024 for _, shared, *_ in compiled), "expected tiles that fit an H200's memory"
    for name, _, ahead, waits in compiled:
        assert (ahead, waits) == (("0", "0") if name == "batch_kernel" else ("1", "1"))


# C, O, n, p, H, stride of pcapsnet0, pcapsnet2 and pcapsnet4
LAYERS = [
    (1, 1, 1, 32, 28, 2), (1, 4, 8, 16, 13, 1), (4, 8, 16, 8, 11, 2), (8, 4, 8, 16, 5, 1), (4, 10, 16, 16, 3, 1),
    (1, 1, 1, 16, 28, 2), (1, 1, 4, 8, 13, 1), (1, 1, 8, 4, 11, 2), (1, 1, 4, 8, 5, 1), (1, 10, 8, 4, 3, 1),
    (1, 1, 3, 32, 24, 2), (4, 8, 16, 8, 9, 1), (8, 10, 8, 16, 7, 2), (10, 10, 16, 16, 3, 1), (3, 7, 5, 200, 9, 1),
]  # fmt: skip


@pytest.mark.parametrize("batch", [1, 100, 4096])
@pytest.mark.parametrize("layer", LAYERS)
def test_plans_fit_the_kernels(layer, batch, monkeypatch):
    monkeypatch.undo()
    C, O, n, p, size, stride = layer
    for networks, m, itemsize in ((1, 1, 2), (1, 4, 4), (1, 5, 4), (10, 4, 4)):
        problem = Problem(
            networks, batch, C, size, size, m, n, 3, 3, O, p, Geometry((stride, stride)), (m, p), itemsize
        )
        chosen = plan(problem)
        for tile in (chosen.forward, chosen.inputs, chosen.weights):
            sides = (tile.rows, tile.columns, tile.inner)
            assert min(sides) >= 16
            assert all(side & (side - 1) == 0 for side in sides)
            assert tile.rows * tile.columns <= 16384
            assert tile.stages * tile.inner * (tile.rows + tile.columns) * itemsize <= 227 * 1024
        for tile in (chosen.forward, chosen.activation):
            assert tile.rows % problem.m_pad == 0
        for tile in (chosen.forward, chosen.activation, chosen.weights):
            assert tile.columns % problem.p_pad == 0
        assert chosen.weights.inner % problem.m_pad == 0
        assert 1 <= chosen.splits <= 1056
