"""compile_inference: what it takes, what it refuses, and the path without kernels."""

import logging
from dataclasses import replace

import pytest
import torch

from purecaps import Layer, PCapsNet, compile_inference, create_model
from purecaps.errors import ConfigError
from purecaps.ops.cuda.nvrtc import CudaError

LAYERS = [Layer(1, None, 16, stride=2), Layer(1, 4, 6), Layer(1, 6, 4, stride=2), Layer(1, 4, 6), Layer(None, 6, 4)]


def replaced(position, **changes):
    """The paper's smallest network with one layer changed."""
    layers = list(LAYERS)
    layers[position] = replace(layers[position], **changes)
    return layers


@pytest.fixture
def with_kernels(monkeypatch):
    """As on a machine that has what the kernels need: refusals are then the network's own."""
    monkeypatch.setattr("purecaps.ops.triton.missing", lambda device_type: None)


@pytest.mark.parametrize(
    ("impl", "precision"), [("conv", "fp32"), ("conv", "tf32"), ("conv", "fp16"), ("conv", "bf16"), ("cpu", "fp32")]
)
def test_without_kernels_the_lengths_are_those_of_the_network(impl, precision, digits):
    model, images = create_model("pcapsnet2", pretrained=True), digits.test.images[:9]
    got = compile_inference(model, impl=impl, precision=precision)(images)
    true = model.double()(images.double() / 255)
    assert got.dtype == torch.float32
    tolerance = {"fp32": 2e-6, "tf32": 4e-3, "fp16": 4e-3, "bf16": 3e-2}[precision]
    assert (got.double() - true).abs().max() <= tolerance


@pytest.mark.parametrize(("output", "shape"), [("lengths", (0, 10)), ("class", (0,))])
@pytest.mark.parametrize("impl", ["cpu", "conv"])
def test_no_images_have_no_lengths_and_no_classes(impl, output, shape):
    function = compile_inference(create_model("pcapsnet1"), impl=impl, output=output)
    assert function(torch.zeros(0, 1, 28, 28)).shape == shape


def test_conv_gives_the_classes_of_the_network(digits):
    model, images = create_model("pcapsnet1", pretrained=True), digits.test.images
    got = compile_inference(model, impl="conv", precision="fp32", output="class")(images)
    assert got.dtype == torch.int64
    assert torch.equal(got, model(images.float() / 255).argmax(dim=1))


def test_bytes_and_fractions_of_255_give_the_same(digits):
    function = compile_inference(create_model("pcapsnet1"), impl="conv", precision="fp32")
    images = digits.test.images[:3]
    torch.testing.assert_close(function(images), function(images.float() / 255))


def test_the_network_stays_as_it_was_and_later_changes_do_not_reach_the_function(digits):
    model, images = create_model("pcapsnet1").train(), digits.test.images[:2]
    function = compile_inference(model, impl="conv", precision="fp16")
    before = function(images)
    assert model.training
    assert all(weight.dtype == torch.float32 and weight.requires_grad for weight in model.parameters())
    model.reset_parameters()
    assert torch.equal(function(images), before)


@pytest.mark.parametrize("impl", ["cpu", "conv"])
def test_autocast_where_it_is_called_changes_nothing(impl, digits):
    function, images = compile_inference(create_model("pcapsnet1"), impl=impl), digits.test.images[:3]
    expected = function(images)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(function(images), expected)


def test_how_a_gpu_rounds_is_nothing_to_a_cpu(digits):
    function, conv = compile_inference(create_model("pcapsnet1"), impl="conv"), torch.backends.cudnn.conv
    before, conv.fp32_precision = conv.fp32_precision, "ieee"
    try:
        with pytest.raises(RuntimeError, match="mix of the legacy and new"):
            assert torch.backends.cudnn.allow_tf32
        assert function(digits.test.images[:1]).shape == (1, 10)
    finally:
        conv.fp32_precision = before


def test_nothing_is_recorded_for_gradients(digits):
    assert not compile_inference(create_model("pcapsnet1"), impl="conv")(digits.test.images[:1]).requires_grad


def test_auto_says_what_it_took_and_why(caplog, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with caplog.at_level(logging.INFO, logger="purecaps.inference"):
        function = compile_inference(create_model("pcapsnet2"), impl="auto")
    assert (function.impl, function.precision) == ("cpu", "fp32")
    assert caplog.messages == [
        "inference by cpu (network: precision fp32, only fp16 and bf16 are covered; "
        "triton: device cpu, only cuda is covered)"
    ]


@pytest.mark.parametrize(
    ("options", "asked", "reason"),
    [({}, "fp16", "float16, only float32"), ({"squash_chunk": 3}, "fp32", "squash_chunk = 3, which in capsules")],
)
def test_what_the_cpu_layers_do_not_cover_is_refused_and_auto_takes_conv(options, asked, reason):
    model = PCapsNet([Layer(1, None, 12, stride=2), *LAYERS[1:3], Layer(None, 4, 4)], in_shape=(1, 28, 28), **options)
    with pytest.raises(ConfigError, match=f'"cpu" does not cover this network .*{reason}'):
        compile_inference(model, impl="cpu", precision=asked)
    assert compile_inference(model, precision=asked).impl == "conv"


def test_auto_goes_on_where_a_kernel_cannot_be_compiled_and_says_so(caplog, monkeypatch):
    def refused(layout, *, classes_out):
        raise CudaError("NVRTC could not compile a kernel:\nunknown architecture")

    monkeypatch.setattr("purecaps.ops.cuda.device.missing", lambda device: None)
    monkeypatch.setattr("purecaps.ops.cuda.device.shared_memory", lambda device: 227 * 1024)
    monkeypatch.setattr("purecaps.ops.cuda.network.Network", refused)
    with caplog.at_level(logging.INFO, logger="purecaps.inference"):
        assert compile_inference(create_model("pcapsnet2"), precision="fp16").impl == "conv"
    assert "network: NVRTC could not compile a kernel: unknown architecture; triton" in caplog.messages[0]
    with pytest.raises(CudaError, match="unknown architecture"):
        compile_inference(create_model("pcapsnet2"), precision="fp16", impl="network")


def test_the_text_form_says_what_it_is():
    function = compile_inference(create_model("pcapsnet2"), impl="conv", precision="fp16", output="class")
    assert repr(function) == "CompiledInference(1x28x28 -> class, conv, fp16, cpu)"


@pytest.mark.parametrize("impl", ["triton", "network"])
def test_the_kernels_are_refused_on_a_cpu(monkeypatch, impl):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match=rf'"{impl}" does not cover this network \(device cpu.*use "auto" or "conv"'):
        compile_inference(create_model("pcapsnet2"), impl=impl, precision="fp16")


def test_layers_that_the_kernels_do_not_cover_are_refused_with_the_reason(with_kernels):
    model = PCapsNet([Layer(2, None, 8, g=1), Layer(None, 4, 4, kernel=26)], in_shape=(1, 28, 28))
    with pytest.raises(ConfigError, match=r'"triton" does not cover this network \(capsules or chunks of odd sizes'):
        compile_inference(model, impl="triton")
    assert compile_inference(model).impl == "cpu"


@pytest.mark.parametrize(
    ("layers", "options", "reason"),
    [
        ([Layer(None, None, 16)], {"in_shape": (1, 3, 3)}, r"one layer, only networks of two and more"),
        (LAYERS, {"in_shape": (3, 28, 28)}, r"images of 3 channels, only one"),
        (replaced(1, padding=1), {"in_shape": (1, 28, 28)}, r"layer 2 has padding \(1, 1\)"),
        (replaced(2, kernel=5), {"in_shape": (1, 32, 32)}, r"layer 3 has a kernel of 5x5"),
        (replaced(3, stride=4), {"in_shape": (1, 51, 51)}, r"layer 4 has stride \(4, 4\), only 1 and 2"),
        (LAYERS, {"squash_chunk": 8}, r"layer 1 has squash_chunk = 8"),
        (LAYERS, {"in_shape": (1, 32, 32)}, r"a last layer that reads a map of 4x4, only 3x3"),
        (LAYERS, {"num_classes": 33}, r"layer 5 has 33 capsules of 4 columns, padded, only 128 columns"),
        (replaced(1, p=24)[:2] + replaced(2, n=24)[2:], {}, r"layer 2 has capsules of 4 to 24 columns, only up to 8"),
        (
            [*replaced(3, n=1, p=1)[:4], Layer(None, 1, 12)],
            {},
            r"layer 5 has capsules of 1 to 12 columns, only up to 8",
        ),
        ([*replaced(3, n=1, p=1)[:4], Layer(None, 1, 1)], {"num_classes": 33}, r"layer 5 has 33 capsules of 4 columns"),
        (
            [Layer(1, None, 36, stride=2), *replaced(1, n=9)[1:]],
            {},
            r"layer 1 has capsules of 36 numbers, only up to 32",
        ),
        (replaced(2, n=2), {}, r"layer 3 reads rows of 2 out of capsules with rows of 6"),
        ([Layer(1, None, 24, stride=2), *LAYERS[1:]], {}, r"capsules of 24 numbers in rows of 4, only 4 rows"),
        ([Layer(2, None, 16, stride=2), *LAYERS[1:]], {}, r"a first layer of 2 capsules, only one"),
        (replaced(1, g=2)[:2] + LAYERS[2:], {}, r"layer 2 has g = 2"),
    ],
)
def test_networks_that_one_kernel_does_not_hold_are_refused_by_name(layers, options, reason):
    model = PCapsNet(layers, **options)
    with pytest.raises(ConfigError, match=rf'"network" does not cover this network \({reason}.*use "auto" or "conv"'):
        compile_inference(model, impl="network", precision="fp16")


def test_a_network_that_shared_memory_does_not_hold_is_refused(monkeypatch):
    monkeypatch.setattr("purecaps.ops.cuda.device.missing", lambda device: None)
    monkeypatch.setattr("purecaps.ops.cuda.device.shared_memory", lambda device: 48 * 1024)
    with pytest.raises(ConfigError, match=r"\(50560 bytes of shared memory, only 49152 are there\)"):
        compile_inference(create_model("pcapsnet3"), impl="network", precision="bf16")


def test_one_kernel_is_refused_in_single_precision():
    with pytest.raises(ConfigError, match=r"\(precision tf32, only fp16 and bf16 are covered\)"):
        compile_inference(create_model("pcapsnet2"), impl="network", precision="tf32")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp8"}, "precision: expected one of fp16, bf16, tf32, fp32, got 'fp8'"),
        ({"output": "scores"}, "output: expected one of lengths, class, got 'scores'"),
        ({"impl": "cuda"}, "impl: expected one of auto, network, triton, cpu, conv, got 'cuda'"),
    ],
)
def test_unknown_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        compile_inference(create_model("pcapsnet1"), **options)


def test_other_networks_are_refused():
    with pytest.raises(ConfigError, match="model: expected a PCapsNet, got Linear"):
        compile_inference(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(1, 28, 28), r"images: expected \[B, 1, 28, 28\], got \[1, 28, 28\]"),
        (torch.zeros(2, 1, 28, 27), r"images: expected \[B, 1, 28, 28\], got \[2, 1, 28, 27\]"),
        (torch.zeros(2, 1, 28, 28, dtype=torch.int32), r"expected uint8, or floating.*got torch.int32"),
        (torch.zeros(2, 1, 28, 28, device="meta"), r"expected them on cpu, as the network is, got meta"),
    ],
)
def test_images_that_do_not_fit_are_refused(images, message):
    with pytest.raises(ConfigError, match=message):
        compile_inference(create_model("pcapsnet1"), impl="conv")(images)
