"""A run of blocks as one operator, against the blocks one by one."""

import pytest
import torch
from fused_cases import normal
from torch.nn.modules.module import register_module_forward_hook

from interpreted import DEVICE
from purecaps import Layer, PCapsNet, create_model
from purecaps.errors import ConfigError
from purecaps.models.stack import ModelStack
from purecaps.ops import triton as fused
from purecaps.ops.geometry import Block, Geometry
from purecaps.ops.triton import stack
from purecaps.ops.triton.plan import planned
from purecaps.ops.triton.tile import Tile
from purecaps.testing import assert_close_in_norm

pytestmark = pytest.mark.usefixtures("kernels")

# Odd sizes: capsules of 3 rows, padding, dilation, a refold after the first layer, several capsules later.
LAYERS = [Layer(1, None, 6), Layer(2, 2, 5, stride=2, padding=1), Layer(3, 5, 4, kernel=2), Layer(None, 4, 3)]


EVEN = [Layer(1, None, 8), Layer(2, 4, 6, stride=2, padding=1), Layer(3, 6, 4, kernel=2), Layer(None, 4, 3)]


def odd_network(impl="reference", layers=LAYERS, **options):
    torch.manual_seed(0)
    return PCapsNet(layers, in_shape=(2, 11, 10), num_classes=3, impl=impl, **options).to(DEVICE)


def images():
    return torch.rand(3, 2, 11, 10, generator=torch.Generator().manual_seed(1)).to(DEVICE)


def results(model, pictures):
    """Capsules, and the gradients of images and weights."""
    pictures = pictures.detach().requires_grad_()
    capsules = model.capsules(pictures)
    upstream = normal(*capsules.shape, seed=2).to(capsules)
    return [capsules.detach(), *torch.autograd.grad(capsules, [pictures, *model.parameters()], upstream)]


def in_float32(monkeypatch):
    monkeypatch.setattr("purecaps.ops.triton.stack.product_precision", lambda precision: "ieee")


@pytest.mark.parametrize(("layers", "chunk"), [(LAYERS, None), (EVEN, 2)], ids=["whole capsules", "chunks"])
def test_a_run_of_blocks_matches_the_reference(monkeypatch, layers, chunk):
    in_float32(monkeypatch)
    true = results(odd_network(layers=layers, squash_chunk=chunk).double(), images().double())
    model = odd_network("triton", layers, squash_chunk=chunk)
    assert model.radii(images()) is not None, "expected all layers to be taken at once"
    got = results(model, images())
    for one, other in zip(got, true, strict=True):
        assert_close_in_norm(one, other, 1e-6, "run of blocks")


def test_saved_tensors_that_come_back_in_another_order_change_nothing(monkeypatch):
    # As torch.autograd.graph.save_on_cpu does it: what is kept is a copy, of plain strides.
    in_float32(monkeypatch)
    model = odd_network("triton")
    expected = results(model, images())
    plain = {"memory_format": torch.contiguous_format}
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept.clone(**plain), lambda kept: kept):
        found = results(model, images())
    for got, true in zip(found, expected, strict=True):
        assert_close_in_norm(got, true, 1e-6, "run of blocks")


@pytest.mark.parametrize("tile", [Tile(64, 32, 32, span=4), Tile(16, 32, 16, span=2)], ids=["four", "two"])
@pytest.mark.parametrize(("layers", "chunk"), [(LAYERS, None), (EVEN, 2)], ids=["whole capsules", "chunks"])
def test_a_run_of_blocks_with_pixels_side_by_side_matches_the_reference(monkeypatch, layers, chunk, tile):
    in_float32(monkeypatch)
    true = results(odd_network(layers=layers, squash_chunk=chunk).double(), images().double())
    with planned(forward=tile, inputs=tile):
        got = results(odd_network("triton", layers, squash_chunk=chunk), images())
    for one, other in zip(got, true, strict=True):
        assert_close_in_norm(one, other, 1e-6, "run of blocks")


@pytest.mark.parametrize("coefficients", ["free", "softmax"])
def test_layers_with_coupling_coefficients_are_taken_at_once(monkeypatch, coefficients):
    in_float32(monkeypatch)
    true, model = (odd_network(impl, coefficients=coefficients) for impl in ("reference", "triton"))
    with torch.no_grad():
        for network in (true, model):
            for index, block in enumerate(network.blocks):
                block.conv.coupling.copy_(normal(*block.conv.coupling.shape, seed=index))
    assert model.radii(images()) is not None, "expected all layers to be taken at once"
    got, expected = results(model, images()), results(true.double(), images().double())
    for one, other in zip(got, expected, strict=True):
        if (other == 0).all():  # a softmax over the first layer's single capsule
            assert (one == 0).all()
        else:
            assert_close_in_norm(one, other, 1e-6, coefficients)


@pytest.mark.parametrize(
    "net", ["pcapsnet1"] if DEVICE == "cpu" else ["pcapsnet0", "pcapsnet1", "pcapsnet2", "pcapsnet3"]
)
def test_the_papers_networks_are_taken_at_once(monkeypatch, net):
    in_float32(monkeypatch)
    pictures = torch.rand(1, 1, 28, 28, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    torch.manual_seed(0)
    model = create_model(net, impl="triton").to(DEVICE)
    monkeypatch.setattr("purecaps.nn.CapsBlock.forward", None)
    got = results(model, pictures)
    monkeypatch.undo()
    for block in model.blocks:
        block.conv.impl = "reference"
    for one, other in zip(got, results(model.double(), pictures.double()), strict=True):
        assert_close_in_norm(one, other, 2e-6, net)


def test_radii_are_the_lengths_before_squashing(monkeypatch):
    in_float32(monkeypatch)
    model = odd_network("triton")
    scores = model(images())
    torch.testing.assert_close((1 - torch.exp(-model.radii(images()))).mean((2, 3)), scores)


def test_gradients_through_radii_match_those_through_scores(monkeypatch):
    in_float32(monkeypatch)
    model = odd_network("triton")
    weights = list(model.parameters())
    through_scores = torch.autograd.grad(model(images()).square().sum(), weights)
    scores = (1 - torch.exp(-model.radii(images()))).mean((2, 3))
    torch.testing.assert_close(torch.autograd.grad(scores.square().sum(), weights), through_scores)


def test_a_stack_of_networks_is_one_launch_with_each_ones_result(monkeypatch):
    in_float32(monkeypatch)
    networks = [odd_network("triton") for _ in range(2)]
    with torch.no_grad():
        for parameter in networks[1].parameters():
            parameter.mul_(0.7)
    both, pictures = ModelStack(networks), torch.stack([images(), images().flip(0)])
    radii = both.radii(pictures)
    for network, picture, got in zip(networks, pictures, radii, strict=True):
        torch.testing.assert_close(got, network.radii(picture))
    loss = radii.square().sum()
    got = torch.autograd.grad(loss, list(both.parameters()))
    for index, network in enumerate(networks):
        alone = torch.autograd.grad(network.radii(pictures[index]).square().sum(), list(network.parameters()))
        torch.testing.assert_close([each[index] for each in got], list(alone))


def test_half_precision_keeps_float32_weights_and_gradients():
    dtype = torch.float16
    true = results(odd_network().double(), images().double())
    model = odd_network("triton")
    pictures = images().detach().requires_grad_()
    with torch.autocast(DEVICE, dtype):
        capsules = model.capsules(pictures)
    assert capsules.dtype == dtype
    gradients = torch.autograd.grad(capsules, list(model.parameters()), normal(*capsules.shape, seed=2).to(capsules))
    assert_close_in_norm(capsules, true[0], 4e-3, "capsules")
    for gradient, other in zip(gradients, true[2:], strict=True):
        assert gradient.dtype == torch.float32
        # The kink of leaky ReLU takes its share; `purecaps.testing` says how.
        assert_close_in_norm(gradient, other, 5e-2, "gradient")


@pytest.mark.parametrize(
    ("weights", "blocks"),
    [
        ([(2, 2, 1, 2, 1, 3, 4), (1, 1, 2, 1, 1, 8, 2)], [Block(), Block()]),
        ([(2, 2, 1, 1, 1, 3, 4)], [Block(squash_chunk=2)]),
        ([(2, 2, 1, 1, 1, 3, 4), (9, 1, 1, 1, 1, 4, 4)], [Block(), Block()]),
        ([(2, 2, 1, 1, 1, 3, 512)], [Block()]),
        ([(2, 2, 1, 1, 1, 3, 4), (1, 1, 1, 1, 1, 4, 4)], [Block(squash_chunk=3), Block()]),
        ([(2, 2, 1, 1, 1, 3, 4), (1, 1, 1, 1, 1, 4, 4)], [Block(), Block(squash_gradient="diagonal")]),
    ],
    ids=[
        "a refold that moves data",
        "chunks in the last layer",
        "too small a map",
        "wide capsules",
        "odd chunks",
        "another gradient",
    ],
)
def test_what_is_not_covered_is_left_to_single_blocks(weights, blocks):
    u = torch.zeros(1, 1, 5, 5, 1, 2, 3, device=DEVICE)
    assert fused.caps_blocks(u, [torch.zeros(shape, device=DEVICE) for shape in weights], blocks) is None


HOOKS = ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"]


@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_on_a_layer_is_called(kind):
    model, seen = odd_network("triton"), []
    layers = [model.blocks[1], model.blocks[2].conv]
    for layer in layers:
        getattr(layer, f"register_{kind}")(lambda module, *call: seen.append(module))
    model(images()).sum().backward()
    assert set(seen) == set(layers)


def test_a_hook_on_all_modules_sees_every_layer():
    model, seen = odd_network("triton"), []
    handle = register_module_forward_hook(lambda module, inputs, output: seen.append(module))
    try:
        model(images())
    finally:
        handle.remove()
    assert set(model.modules()) - set(seen) == {model.blocks}


def test_a_layer_that_somebody_has_put_in_between_is_not_passed_over():
    model = odd_network("triton")
    expected = model(images())
    model.blocks[1] = torch.nn.Sequential(model.blocks[1], torch.nn.Identity())
    assert model.radii(images()) is None
    assert_close_in_norm(model(images()), expected, 1e-3, "scores")
    model.blocks[2].forward = lambda u: torch.zeros(3, 3, 4, 4, 1, 3, 4, device=DEVICE)
    assert not model(images()).any()


def test_frozen_weights_and_images_get_no_gradient():
    model = odd_network("triton")
    model.requires_grad_(False)
    model.blocks[3].conv.weight.requires_grad_()
    model(images()).sum().backward()
    assert [block.conv.weight.grad is not None for block in model.blocks] == [False, False, False, True]


def test_the_operators_keep_their_contract_with_torch():
    u = normal(1, 2, 1, 5, 4, 1, 2).to(DEVICE).requires_grad_()
    weights = [normal(1, 2, 2, 1, 1, 1, 2, 4), normal(1, 2, 2, 1, 2, 1, 2, 3, seed=1)]
    weights = [w.to(DEVICE).requires_grad_() for w in weights]
    layers = [stack.Layer(Geometry(), (1, 4), (0, 0), 0.1), stack.Layer(Geometry((2, 1)), (2, 3), (2, 2), 0.1)]
    options = (*stack.encoded(layers), "ieee")
    torch.library.opcheck(stack.stack_forward, (u, weights, *options, True))
    u, weights = u.detach(), [w.detach() for w in weights]
    saved = stack.stack_forward(u, weights, *options, True)
    for need_u in (True, False):
        torch.library.opcheck(stack.stack_backward, (saved[1], saved[3], u, weights, saved, *options, need_u))


def test_compiles_as_one_graph_with_gradients(monkeypatch):
    in_float32(monkeypatch)
    model = odd_network("triton")
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    got, true = (
        torch.autograd.grad(call(images()).square().sum(), list(model.parameters())) for call in (compiled, model)
    )
    torch.testing.assert_close(got, true)


def test_second_derivatives_are_refused_with_what_to_do_instead():
    model = odd_network("triton")
    (gradient,) = torch.autograd.grad(model(images()).sum(), [model.blocks[0].conv.weight], create_graph=True)
    with pytest.raises(ConfigError, match=r'"triton" has no second derivatives.*use "conv"'):
        gradient.square().sum().backward()


@pytest.mark.parametrize("streams", [1, 2])
def test_work_beside_waits_for_what_came_before_and_is_waited_for(monkeypatch, streams):
    told, current = [], []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            told.append(f"{self.name} waits for {other.name}")

        def __enter__(self):
            current.append(self)

        def __exit__(self, *error):
            current.pop()

    current.append(Stream("main"))
    others = tuple(Stream(f"other {number}") for number in range(streams))
    monkeypatch.setattr(stack, "_other_streams", lambda device, count: others)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    beside = stack.Beside(torch.device("cuda"), streams)
    beside.join()
    assert told == [], "expected no wait for a stream that was given nothing"
    for number in range(2):
        beside.run(lambda number=number: told.append(f"work {number} on {current[-1].name}"))
    second = f"other {1 % streams}"
    assert told == [
        "other 0 waits for main", "work 0 on other 0", f"{second} waits for main", f"work 1 on {second}"
    ]  # fmt: skip
    told.clear()
    beside.join()
    assert told == [f"main waits for other {number}" for number in range(streams)]
