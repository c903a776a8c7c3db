"""The networks of the paper, and networks of the user's own."""

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.utils import prune

import purecaps
from purecaps import Layer, PCapsNet, create_model, list_models
from purecaps.errors import ConfigError, UnknownNameError
from purecaps.models.guided import is_guided

PARAMETERS = {
    "pcapsnet0": 170_784,
    "pcapsnet1": 2_952,
    "pcapsnet2": 3_888,
    "pcapsnet3": 22_176,
    "pcapsnet4": 364_896,
}
MAPS = {"pcapsnet2": [13, 11, 5, 3, 1], "pcapsnet4": [11, 9, 7, 3, 1]}


@pytest.mark.parametrize("name", list_models())
def test_every_model_maps_images_to_scores(name):
    model = create_model(name, num_classes=7)
    scores = model(torch.rand(3, *model.in_shape))
    assert scores.shape == (3, 7)
    assert scores.isfinite().all()


@pytest.mark.parametrize("name", list_models())
def test_every_model_maps_no_images_to_no_scores(name):
    model = create_model(name).eval()
    assert model(torch.rand(0, *model.in_shape)).shape == (0, 10)


@pytest.mark.parametrize("name", list_models())
def test_every_model_has_a_gradient_for_every_parameter_that_it_learns(name):
    model = create_model(name)
    images = torch.rand(3, *model.in_shape)
    if is_guided(model):
        scores, penalty = model.guided(images, torch.tensor([2, 0, 1]))
        (sum(each.sum() for each in scores) + penalty).backward()
    else:
        model(images).sum().backward()
    learned = [p for p in model.parameters() if p.requires_grad]
    assert all(p.grad is not None and p.grad.isfinite().all() and (p.grad != 0).any() for p in learned)


@pytest.mark.parametrize(("name", "count"), PARAMETERS.items())
def test_parameter_counts_are_the_papers(name, count):
    assert sum(p.numel() for p in create_model(name).parameters()) == count


@pytest.mark.parametrize(("name", "sizes"), MAPS.items())
def test_maps_shrink_as_in_the_paper(name, sizes):
    model = create_model(name)
    features = model.features(torch.rand(2, *model.in_shape))
    assert [feature.shape[2] for feature in features] == sizes
    assert all(feature.shape[4:6] == (1, 4) for feature in features[1:]), "from layer 2 on, g = 1 and m = 4"


def test_scores_are_the_lengths_of_the_last_capsules_and_stay_below_one():
    model = create_model("pcapsnet3")
    images = torch.rand(5, 1, 28, 28)
    capsules = model.capsules(images)
    assert capsules.shape == (5, 10, 1, 1, 1, 4, 8)
    torch.testing.assert_close(model(images), capsules.flatten(1 + 1).norm(dim=-1))
    assert (model(images) < 1).all()


@pytest.mark.parametrize("impl", ["conv", "reference"])
def test_second_derivatives_are_finite_for_blank_images(impl):
    model = create_model("pcapsnet2", impl=impl)
    images = torch.rand(3, 1, 28, 28)
    images[0] = 0
    images[1, :, :, :14] = 0
    images.requires_grad_()
    (gradient,) = torch.autograd.grad(model(images).sum(), images, create_graph=True)
    gradient.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_multiply_adds_are_counted_from_the_layers():
    assert create_model("pcapsnet2").multiply_adds() == (
        13 * 13 * 1 * 144 + 11 * 11 * 4 * 288 + 5 * 5 * 4 * 288 + 3 * 3 * 4 * 288 + 1 * 4 * 2880
    )


@pytest.mark.parametrize("in_shape", [(3, 28, 28), (1, 27, 27), (1, 41, 63), (4, 32, 30)])
def test_any_admissible_image_and_any_number_of_classes(in_shape):
    model = create_model("pcapsnet2", in_shape=in_shape, num_classes=3)
    assert model(torch.rand(2, *in_shape)).shape == (2, 3)


def test_too_small_an_image_is_told_the_smallest_size():
    with pytest.raises(ConfigError, match=r"in_shape: expected images of at least 27x27.*got 26x40"):
        create_model("pcapsnet2", in_shape=(1, 26, 40))


def test_a_network_of_ones_own_layers():
    model = PCapsNet(
        [Layer(2, None, 12, stride=2, g=1), Layer(3, 3, 5, g=2, kernel=5, padding=2), Layer(None, 5, 2, g=2)],
        in_shape=(2, 17, 19),
        num_classes=4,
        pool="max",
    )
    images = torch.rand(2, 2, 17, 19)
    assert model.capsules(images).shape == (2, 4, 6, 7, 2, 2, 2)
    assert model(images).shape == (2, 4)


def test_images_are_standardised_by_the_network_itself():
    plain, standardised = (
        create_model("pcapsnet4", **options) for options in ({}, {"mean": (0.5,) * 3, "std": (2.0,) * 3})
    )
    standardised.load_state_dict({**standardised.state_dict(), **plain.state_dict()})
    images = torch.rand(2, 3, 24, 24)
    torch.testing.assert_close(standardised(images), plain((images - 0.5) / 2))


def test_options_reach_the_layers():
    model = create_model("pcapsnet2", squash_chunk=8, init="caffe", impl="reference")
    assert [block.squash_chunk for block in model.blocks] == [8, 8, 8, 8, None]
    assert {block.conv.init for block in model.blocks} == {"caffe"}
    assert {block.conv.impl for block in model.blocks} == {"reference"}


def test_listing_takes_a_pattern():
    assert list_models("pcapsnet[01]") == ["pcapsnet0", "pcapsnet1"]
    assert set(PARAMETERS) <= set(purecaps.list_models())


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: create_model("pcapsnet22"), UnknownNameError, "unknown model 'pcapsnet22': did you mean pcapsnet2"),
        (lambda: create_model("pcapsnet2", num_classes=1), ConfigError, "num_classes: expected an int >= 2, got 1"),
        (lambda: create_model("pcapsnet2", in_shape=(28, 28)), ConfigError, r"in_shape: .* got \(28, 28\)"),
        (lambda: create_model("lenet", in_shape=28), ConfigError, r"in_shape: expected \(channels, .* got 28"),
        (lambda: create_model("pcapsnet2", in_shape=28, pretrained=True), ConfigError, r"in_shape: .* got 28"),
        (
            lambda: create_model("pcapsnet2")(torch.zeros(2, 1, 28, 28, dtype=torch.float64)),
            ConfigError,
            "images: expected torch.float32, as the network's weights are, got torch.float64",
        ),
        (lambda: create_model("pcapsnet2", colour=True), ConfigError, "pcapsnet2: has no option 'colour'"),
        (lambda: create_model("pcapsnet2", layers=[]), ConfigError, "pcapsnet2: has no option 'layers'"),
        (lambda: create_model("pcapsnet2", mean=(0.1, 0.2)), ConfigError, r"mean: expected 1 numbers.*\(0.1, 0.2\)"),
        (lambda: create_model("pcapsnet2", std=(0.0,)), ConfigError, r"std: expected 1 numbers above 0.*\(0.0,\)"),
        (lambda: create_model("pcapsnet2", squash_chunk=7), ConfigError, "squash_chunk: expected a divisor of the capsule's 16 numbers, got 7"),
        (lambda: PCapsNet([]), ConfigError, "layers: expected at least one Layer, got none"),
        (lambda: PCapsNet([Layer(3, None, 2)]), ConfigError, r"layers\[0\].out: expected num_classes = 10 .* got 3"),
        (lambda: PCapsNet([Layer(None, None, 2), Layer(None, 2, 2)]), ConfigError, r"layers\[0\].out: expected an int"),
        (lambda: PCapsNet([Layer(1, None, 2), Layer(None, None, 2)]), ConfigError, r"layers\[1\].n: expected an int"),
        (lambda: PCapsNet([Layer(1, None, 8), Layer(None, 3, 2)]), ConfigError, r"layers\[1\]: .* 8 numbers.*1\*3 = 3"),
        (lambda: create_model("pcapsnet2")(torch.rand(2, 3, 28, 28)), ConfigError, r"images: expected \[B, 1, H, W\], got \[2, 3, 28, 28\]"),
        (lambda: create_model("pcapsnet2")(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)), ConfigError, r"images .* got torch.uint8"),
        (lambda: create_model("pcapsnet2")(torch.rand(2, 1, 20, 28)), ConfigError, "u: expected a map of at least 3x3"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_a_whole_network_compiles_as_one_graph():
    model = create_model("pcapsnet2")
    images = torch.rand(3, 1, 28, 28)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(images), model(images))


def test_a_whole_network_exports_with_any_batch_size():
    model = create_model("pcapsnet2").eval()
    batch = torch.export.Dim("batch", min=1, max=4096)
    program = torch.export.export(model, (torch.rand(3, 1, 28, 28),), dynamic_shapes=({0: batch},))
    images = torch.rand(5, 1, 28, 28)
    torch.testing.assert_close(program.module()(images), model(images))


def test_the_two_implementations_agree_on_a_whole_network():
    model = create_model("pcapsnet3").double()
    images = torch.rand(3, 1, 28, 28, dtype=torch.float64)
    scores = []
    for impl in ("conv", "reference"):
        for block in model.blocks:
            block.conv.impl = impl
        scores.append(model(images))
    torch.testing.assert_close(*scores, rtol=1e-12, atol=1e-14)


def test_what_wants_flat_weights_takes_contiguous_ones_and_the_network_stays_the_same(tmp_path):
    model, images = create_model("pcapsnet1"), torch.rand(5, 1, 28, 28)
    before = model(images)
    for weight in model.parameters():
        weight.data = weight.data.contiguous()
    torch.testing.assert_close(model(images), before)
    assert torch.nn.utils.parameters_to_vector(model.parameters()).shape == (2_952,)
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    optimiser = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def loss():
        optimiser.zero_grad()
        value = model(images).square().sum()
        value.backward()
        return value

    first = optimiser.step(loss).detach()
    assert loss() < first
    prune.l1_unstructured(model.capsule_blocks()[0].conv, "weight", amount=0.5)
    assert model(images).isfinite().all()


def test_writing_through_the_state_dict_writes_into_the_network():
    model = create_model("pcapsnet1")
    for tensor in model.state_dict().values():
        tensor.zero_()
    assert not any(weight.any() for weight in model.parameters())


@pytest.mark.parametrize("name", ["pcapsnet2", "lenet", "efficient_capsnet"])
def test_an_image_shape_may_be_given_as_a_list(name):
    assert create_model(name, in_shape=[1, 28, 28])(torch.rand(1, 1, 28, 28)).shape == (1, 10)


@pytest.mark.parametrize("position", range(5))
def test_a_block_may_be_wrapped_or_replaced(position):
    network, images = create_model("pcapsnet2", pretrained=True), torch.rand(2, 1, 28, 28)
    expected = network(images)
    network.blocks[position] = torch.nn.Sequential(network.blocks[position], torch.nn.Identity())
    torch.testing.assert_close(network(images), expected)
    with pytest.raises(
        ConfigError, match=rf"with the layers that it was built of, got Sequential at blocks\[{position}\]"
    ):
        purecaps.compile_inference(network)
    network.blocks[position] = torch.nn.Identity()
    with pytest.raises(ConfigError, match="got Identity at"):
        network.require_capsule_blocks()
