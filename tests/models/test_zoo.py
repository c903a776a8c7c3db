"""What holds of every capsule network with routing."""

import copy

import pytest
import torch

from purecaps import create_model
from purecaps.errors import ConfigError
from purecaps.models import ModelInfo, load_model, save_model
from purecaps.models.guided import stack_obstacle
from purecaps.models.matrix_capsnet import EMCapsNet
from purecaps.models.registry import get_entry
from purecaps.train import RECIPES, RunConfig, train
from purecaps.train.loss import loss_and_mistakes
from purecaps.train.optimiser import make_optimiser

CIFAR = (3, 32, 32)
# Name, options, count here; beside it the published number.
COUNTS = [
    ("capsnet_dr", {}, 8_215_728),  # 8.2M
    ("capsnet_dr1", {}, 8_215_728),
    ("capsnet_dr_nodecoder", {}, 6_804_384),  # 6.8M
    ("capsnet_dr1_nodecoder", {}, 6_804_384),  # 6.8M
    ("capsnet_dr_cifar", {}, 22_476_448),  # none; others quote the 6.8M of MNIST
    ("capsnet_dr_cifar", {"padding": 0}, 11_990_688),
    ("dcnet", {}, 11_886_370),  # 11.8M
    ("dcnet", {"decoder": False}, 9_688_082),
    ("dcnet", {"in_shape": CIFAR, "decoder": False}, 11_536_438),
    ("dcnetpp", {}, 13_153_846),  # 13.4M
    ("dcnetpp", {"in_shape": (1, 28, 28)}, 10_941_922),
    ("mscaps", {}, 12_169_552),
    ("mscaps_cifar", {}, 12_278_608),  # 11.2M
    ("capsnet_em", {}, 318_420),  # 320K
    ("capsnet_em_cifar", {}, 458_900),  # 458K
    ("capsnet_vb", {}, 68_404),  # none for MNIST
    ("capsnet_vb", {"in_shape": (2, 32, 32), "num_classes": 5}, 68_714),  # the authors' default, smallNORB
    ("capsnet_vb_cifar", {}, 323_044),  # 323K; widths reconstructed
    ("attncaps", {}, 5_312_528),  # 5.3M
    ("attncaps", {"decoder": False}, 4_483_328),
    ("attncaps_cifar", {}, 9_566_336),  # "about 5.6M"
    ("attncaps_cifar", {"decoder": False}, 7_563_392),
    ("frms", {"in_shape": CIFAR}, 1_219_648),  # 1.2M; all but the routing reconstructed
    ("frem", {"in_shape": CIFAR}, 1_219_648),  # 1.2M
    ("frms", {}, 1_162_176),
    ("efficient_capsnet", {"decoder": False}, 161_824),  # 161K
    ("efficient_capsnet", {}, 1_573_168),
    ("efficient_capsnet", {"in_shape": CIFAR, "decoder": False}, 168_544),
    ("idpa_capsnet", {}, 1_828_817),  # 1.83M
    ("idpa_capsnet", {"in_shape": (1, 28, 28)}, 1_781_585),
]
# Small images, not square, of unusual channels: the least that each network takes, or just above.
SMALL = {
    "capsnet_dr": ((2, 17, 19), {}),
    "capsnet_dr1_nodecoder": ((2, 19, 17), {}),
    "capsnet_dr_cifar": ((1, 5, 3), {}),
    "dcnet": ((2, 9, 13), {}),
    "dcnetpp": ((2, 21, 23), {}),
    "mscaps": ((2, 17, 20), {}),
    "mscaps_cifar": ((1, 21, 22), {}),
    "capsnet_em": ((2, 17, 19), {"widths": (8, 5, 4, 3)}),
    "capsnet_vb": ((2, 19, 17), {"widths": (8, 5, 4, 3)}),
    "attncaps": ((2, 5, 7), {}),
    "attncaps_cifar": ((1, 3, 1), {}),
    "frms": ((2, 9, 11), {}),
    "frem": ((2, 13, 9), {}),
    "efficient_capsnet": ((2, 11, 13), {}),
    "idpa_capsnet": ((2, 13, 15), {}),
}
LEAST = {
    "capsnet_dr": 17,
    "dcnet": 9,
    "dcnetpp": 21,
    "mscaps": 17,
    "mscaps_cifar": 21,
    "capsnet_em": 17,
    "capsnet_vb_cifar": 17,
    "frms": 9,
    "efficient_capsnet": 11,
    "idpa_capsnet": 13,
}
# Those whose poses are 4x4, and those of which a score is the length of a capsule.
MATRICES = ("capsnet_em", "capsnet_vb", "frms", "frem", "idpa_capsnet")
BY_LENGTH = ("capsnet_dr", "dcnet", "mscaps")
LABELS = torch.tensor([2, 0, 1])


@pytest.fixture(scope="module", params=SMALL)
def network(request):
    """A network for small images of three classes; tests leave its weights as they are."""
    torch.manual_seed(0)
    in_shape, options = SMALL[request.param]
    return create_model(request.param, in_shape=in_shape, num_classes=3, **options)


@pytest.fixture
def recipe(request):
    """What the network of a test is trained by."""
    return RECIPES[get_entry(request.node.callspec.params["network"]).recipe]


def images_for(network, count=3):
    return torch.rand(count, *network.in_shape, generator=torch.Generator().manual_seed(1))


def learned(network):
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


@pytest.mark.parametrize(("name", "options", "count"), COUNTS)
def test_parameters_are_as_many_as_the_table_says(name, options, count):
    with torch.device("meta"):
        network = create_model(name, **options)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_small_images_of_three_classes_have_scores_and_gradients(network, recipe):
    images = images_for(network)
    assert network(images).shape == (3, 3)
    loss, _ = loss_and_mistakes(network, images, LABELS, recipe)
    gradients = torch.autograd.grad(loss, learned(network))
    assert loss.isfinite()
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_blank_images_have_finite_gradients(network, recipe):
    images = torch.zeros(3, *network.in_shape, requires_grad=True)
    loss, _ = loss_and_mistakes(network, images, LABELS, recipe)
    gradients = torch.autograd.grad(loss, [images, *learned(network)])
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_an_image_is_scored_alike_in_any_company(network):
    network.eval()
    images = images_for(network, 5)
    with torch.no_grad():
        together, alone = network(images), torch.cat([network(images[3:4]), network(images[1:2])])
    network.train()
    torch.testing.assert_close(together[[3, 1]], alone, rtol=1e-4, atol=1e-6)
    assert not torch.equal(together[3], together[1])


def test_capsules_have_the_librarys_seven_axes(network, request):
    network.eval()
    with torch.no_grad():
        capsules, scores = network.capsules(images_for(network)), network(images_for(network))
    network.train()
    name = request.node.callspec.params["network"]
    assert capsules.shape[:6] == (3, 3, 1, 1, 1, 4 if name in MATRICES else 1)
    if name.startswith(BY_LENGTH):
        torch.testing.assert_close(scores, capsules.flatten(2).norm(dim=2))


def test_a_few_steps_reduce_the_loss(network, recipe):
    copied = copy.deepcopy(network)
    images, labels = images_for(copied, 6), torch.tensor([0, 1, 2, 0, 1, 2])
    optimiser = make_optimiser(copied, recipe)
    losses = []
    for _ in range(30 if isinstance(network, EMCapsNet) else 10):
        optimiser.zero_grad()
        # The first step's loss throughout: the spread loss's margin would rise with the steps.
        loss, _ = loss_and_mistakes(copied, images, labels, recipe, step=0)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


def test_a_saved_network_comes_back_with_its_statistics(network, tmp_path, request):
    name = request.node.callspec.params["network"]
    in_shape, options = SMALL[name]
    trained = copy.deepcopy(network)
    trained(images_for(trained))  # moves the statistics of batch norm
    save_model(trained.eval(), tmp_path / "m.safetensors", ModelInfo(name, in_shape, in_shape, 3, options))
    loaded, _ = load_model(tmp_path / "m.safetensors")
    images = images_for(trained)
    with torch.no_grad():
        assert torch.equal(loaded(images), trained(images))


def test_several_are_trained_in_turn_not_as_a_stack(network):
    assert stack_obstacle(network) is not None


@pytest.mark.parametrize(("name", "least"), LEAST.items())
def test_too_small_an_image_is_told_the_smallest_size(name, least):
    with pytest.raises(ConfigError, match=f"in_shape: expected images of at least {least}x{least}.*got {least - 1}x40"):
        create_model(name, in_shape=(1, least - 1, 40))
    network = create_model(name, in_shape=(1, least, least), num_classes=2).eval()
    with torch.no_grad():
        assert network(torch.rand(1, 1, least, least)).shape == (1, 2)


@pytest.mark.parametrize("name", [name for name in SMALL if name.startswith(BY_LENGTH)])
def test_the_recipe_is_the_authors_margin_loss(name):
    recipe = RECIPES[get_entry(name).recipe]
    assert (recipe.loss, recipe.m_pos, recipe.m_neg, recipe.lam) == ("margin", 0.9, 0.1, 0.5)
    assert recipe.model_options() == {}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("capsnet_dr", {"iterations": 0}, "iterations: expected an int >= 1, got 0"),
        ("dcnet", {"iterations": 1.5}, "iterations: expected an int >= 1, got 1.5"),
        ("mscaps", {"dropout": 1.0}, r"dropout: expected a number of \[0, 1\), got 1.0"),
        ("mscaps", {"decoder": True}, "mscaps: has no option 'decoder'"),
        ("dcnetpp", {"init": "caffe"}, "dcnetpp: has no option 'init'"),
        ("capsnet_em", {"iterations": 0}, "iterations: expected an int >= 1, got 0"),
        ("capsnet_em", {"widths": (32, 0, 32, 32)}, "out_caps: expected an int >= 1, got 0"),
        ("capsnet_vb", {"iterations": 2.5}, "iterations: expected an int >= 1, got 2.5"),
        ("idpa_capsnet", {"iterations": 0}, "iterations: expected an int >= 1, got 0"),
        ("attncaps", {"layers": 0}, "layers: expected an int >= 1, got 0"),
        ("attncaps", {"dropout": 1.0}, r"dropout: expected a number of \[0, 1\), got 1.0"),
        ("frms", {"num_classes": 1}, "num_classes: expected an int >= 2, got 1"),
        ("efficient_capsnet", {"init": "caffe"}, "efficient_capsnet: has no option 'init'"),
    ],
)
def test_wrong_options_are_refused_by_name(name, options, message):
    with pytest.raises(ConfigError, match=message), torch.device("meta"):
        create_model(name, **options)


def run(name, crop, digits, folder):
    recipe = RECIPES[name].replace(steps=3, batch_size=4, precision="fp32", log_every=1, augment=(f"crop:{crop}",))
    trained = train(RunConfig(name, "digits", name, recipe), digits, folder)
    assert trained.model.in_shape == (1, crop, crop)
    return trained.model, [row["loss"] for row in trained.history]


def test_the_spread_losss_margin_rises_in_the_trainer(digits, tmp_path):
    _, losses = run("capsnet_em", 17, digits, tmp_path)
    # Untrained, all activations are alike: nine wrong classes are short of the whole margin.
    assert losses == pytest.approx([9 * margin**2 for margin in (0.2, 0.55, 0.9)], rel=0.02)


def test_batch_norm_and_a_decoder_go_through_the_trainer(digits, tmp_path):
    model, losses = run("efficient_capsnet", 13, digits, tmp_path)
    assert model.stem[2].num_batches_tracked == 3
    assert losses[-1] < losses[0]


def test_several_losses_go_through_the_trainer(digits, tmp_path):
    model, losses = run("dcnetpp", 21, digits, tmp_path)
    assert model.dense[0].last_norm.num_batches_tracked == 3
    # Four margin losses of a network that has learned nothing are 4 * 0.81, and the penalty is added.
    assert losses[0] > 3.2
    assert losses[-1] < losses[0]
