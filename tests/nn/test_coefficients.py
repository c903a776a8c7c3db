"""Explicit coupling coefficients: what they compute, how they start, and that every way to run a network carries them."""

import pytest
import torch

from purecaps import compile_inference
from purecaps.errors import UnknownNameError
from purecaps.evaluate.trained import TrainedModel
from purecaps.export.c import export_c
from purecaps.models import ModelInfo, create_model, load_model, save_model
from purecaps.models.stack import ModelStack
from purecaps.nn import CapsConv2d
from purecaps.nn.conv import COEFFICIENTS
from purecaps.ops.conv import fold_kernel
from purecaps.quant.convert import quantise

BOTH = pytest.mark.parametrize("coefficients", COEFFICIENTS)


def scrambled(model, seed=0):
    """The model with coefficients that all differ."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("coupling"):
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def votes_one_by_one(u, w, c):
    """Every vote by itself, scaled and then summed: the paper's equation 2 at stride 1, in loops."""
    B, C, H, W, g, m, _ = u.shape
    kh, kw, _, O, _, _, p = w.shape
    v = torch.zeros(B, O, H - kh + 1, W - kw + 1, g, m, p, dtype=u.dtype)
    for o in range(O):
        for child in range(C):
            for i in range(kh):
                for j in range(kw):
                    vote = u[:, child, i : i + H - kh + 1, j : j + W - kw + 1] @ w[i, j, child, o]
                    v[:, o] += c[i, j, child, o] * vote
    return v


@pytest.mark.parametrize("impl", ["conv", "cpu", "reference"])
@BOTH
def test_each_vote_is_multiplied_with_its_coefficient(coefficients, impl):
    layer = scrambled(CapsConv2d(2, 3, (1, 4, 5), (3, 2), coefficients=coefficients, impl=impl)).double()
    u = torch.randn(33, 2, 5, 4, 1, 3, 4, dtype=torch.float64)
    b = layer.coupling
    c = b if coefficients == "free" else 3 * b.exp() / b.exp().sum(dim=3, keepdim=True)
    torch.testing.assert_close(layer(u), votes_one_by_one(u, layer.weight, c), rtol=1e-12, atol=1e-12)


def test_softmax_shares_each_input_capsule_among_the_output_capsules():
    layer = scrambled(CapsConv2d(2, 5, (1, 4, 5), coefficients="softmax"))
    shares = (layer.kernel() / layer.weight)[..., 0, 0, 0]
    torch.testing.assert_close(shares.sum(dim=3), torch.full((3, 3, 2), 5.0))
    assert (shares > 0).all()


@BOTH
def test_a_network_starts_as_the_one_without_coefficients(coefficients):
    images = torch.rand(3, 1, 28, 28)
    scores = []
    for option in (None, coefficients):
        torch.manual_seed(7)
        scores.append(create_model("pcapsnet3", coefficients=option)(images))
    torch.testing.assert_close(*scores)


@BOTH
def test_coefficients_are_parameters_that_are_counted_and_trained(coefficients):
    model = create_model("pcapsnet3", coefficients=coefficients)
    plain = create_model("pcapsnet3")
    couplings = 9 * (1 + 2 + 2 * 4 + 4 * 2 + 2 * 10)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in plain.parameters()) + couplings
    model(torch.rand(3, 1, 28, 28)).square().sum().backward()
    trained = [block.conv.coupling.grad.abs().sum() > 0 for block in model.blocks]
    # A softmax over the first layer's single capsule is 1 whatever its logit.
    assert trained == [coefficients == "free", True, True, True, True]


@BOTH
def test_the_kernel_keeps_the_layout_that_conv2d_reads_without_a_copy(coefficients):
    kernel = CapsConv2d(2, 3, (1, 4, 5), coefficients=coefficients).kernel()
    assert fold_kernel(kernel).data_ptr() == kernel.data_ptr()


@BOTH
def test_networks_side_by_side_have_coefficients_of_their_own(coefficients):
    networks = [scrambled(create_model("pcapsnet3", coefficients=coefficients), seed) for seed in range(3)]
    images = torch.rand(3, 4, 1, 28, 28)
    stacked = ModelStack(networks)
    alone = torch.stack([network(batch) for network, batch in zip(networks, images, strict=True)])
    torch.testing.assert_close(stacked(images), alone)
    for network, again in zip(networks, stacked.unstack(), strict=True):
        assert torch.equal(network.blocks[2].conv.coupling, again.blocks[2].conv.coupling)


@BOTH
def test_a_saved_network_comes_back_with_its_coefficients(coefficients, tmp_path):
    model = scrambled(create_model("pcapsnet1", coefficients=coefficients))
    info = ModelInfo("pcapsnet1", (1, 28, 28), (1, 28, 28), 10, {"coefficients": coefficients})
    save_model(model, tmp_path / "m.safetensors", info)
    loaded, _ = load_model(tmp_path / "m.safetensors")
    images = torch.rand(2, 1, 28, 28)
    assert torch.equal(loaded(images), model(images))


@BOTH
def test_fast_inference_has_the_coefficients_in_its_kernels(coefficients):
    model = scrambled(create_model("pcapsnet2", coefficients=coefficients))
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(compile_inference(model, precision="fp32")(images), model(images).detach())


@BOTH
def test_exports_have_the_coefficients_in_their_weights(coefficients, tmp_path):
    with_them = scrambled(create_model("pcapsnet1", coefficients=coefficients)).eval()
    absorbed = create_model("pcapsnet1").eval()
    for block, plain in zip(with_them.blocks, absorbed.blocks, strict=True):
        plain.conv.weight.data.copy_(block.conv.kernel())
    images = torch.randint(0, 256, (5, 1, 28, 28), dtype=torch.uint8)
    sources, kernels = [], []
    for name, model in (("with_them", with_them), ("absorbed", absorbed)):
        trained = TrainedModel(model, ModelInfo("pcapsnet1", (1, 28, 28), (1, 28, 28), 10, {}, tuple("abcdefghij")))
        export_c(trained, tmp_path / name)
        sources.append((tmp_path / name / "pcapsnet1.c").read_text())
        kernels.append(quantise(trained, images).state_dict())
    assert sources[0] == sources[1]
    torch.testing.assert_close(*kernels, rtol=0, atol=0)


def test_a_layer_with_coefficients_compiles_as_one_graph():
    layer = scrambled(CapsConv2d(2, 3, (1, 4, 5), coefficients="softmax"))
    u = torch.rand(3, 2, 5, 4, 1, 3, 4)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(u), layer(u))


def test_a_layer_says_that_it_has_coefficients():
    assert "init caffe, coefficients free" in repr(CapsConv2d(1, 4, (1, 8, 16), init="caffe", coefficients="free"))


def test_an_unknown_kind_is_refused_by_name():
    with pytest.raises(UnknownNameError, match="unknown coefficients 'fre': did you mean free"):
        CapsConv2d(1, 1, (1, 1, 1), coefficients="fre")
