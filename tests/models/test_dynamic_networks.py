"""What holds of every network with dynamic routing: CapsNet, DCNet, DCNet++ and MS-CapsNet."""

import copy

import pytest
import torch

from purecaps import create_model
from purecaps.errors import ConfigError
from purecaps.losses import margin_loss
from purecaps.models import ModelInfo, load_model, save_model
from purecaps.models.guided import stack_obstacle
from purecaps.models.registry import get_entry
from purecaps.train import RECIPES, RunConfig, train

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
]
# Small images, not square, of unusual channels: the least that each network takes, or just above.
SMALL = {
    "capsnet_dr": (2, 17, 19),
    "capsnet_dr1_nodecoder": (2, 19, 17),
    "capsnet_dr_cifar": (1, 5, 3),
    "dcnet": (2, 9, 13),
    "dcnetpp": (2, 21, 23),
    "mscaps": (2, 17, 20),
    "mscaps_cifar": (1, 21, 22),
}
LEAST = {"capsnet_dr": 17, "dcnet": 9, "dcnetpp": 21, "mscaps": 17, "mscaps_cifar": 21}
LABELS = torch.tensor([2, 0, 1])


@pytest.fixture(scope="module", params=SMALL)
def network(request):
    """A network for small images of three classes; tests leave its weights as they are."""
    torch.manual_seed(0)
    return create_model(request.param, in_shape=SMALL[request.param], num_classes=3)


def images_for(network, count=3):
    return torch.rand(count, *network.in_shape, generator=torch.Generator().manual_seed(1))


def loss_of(network, images, labels):
    scores, penalty = network.guided(images, labels)
    return sum(margin_loss(each, labels, m_pos=0.9) for each in scores) + penalty


@pytest.mark.parametrize(("name", "options", "count"), COUNTS)
def test_parameters_are_as_many_as_the_table_says(name, options, count):
    with torch.device("meta"):
        network = create_model(name, **options)
    assert sum(parameter.numel() for parameter in network.parameters()) == count


def test_small_images_of_three_classes_have_scores_and_gradients(network):
    images = images_for(network)
    assert network(images).shape == (3, 3)
    loss = loss_of(network, images, LABELS)
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert loss.isfinite()


def test_blank_images_have_finite_gradients(network):
    images = torch.zeros(3, *network.in_shape, requires_grad=True)
    gradients = torch.autograd.grad(loss_of(network, images, LABELS), [images, *network.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_an_image_is_scored_alike_in_any_company(network):
    network.eval()
    images = images_for(network, 5)
    with torch.no_grad():
        together, alone = network(images), torch.cat([network(images[3:4]), network(images[1:2])])
    network.train()
    torch.testing.assert_close(together[[3, 1]], alone, rtol=1e-4, atol=1e-6)


def test_scores_are_the_lengths_of_the_class_capsules(network):
    network.eval()
    images = images_for(network)
    with torch.no_grad():
        capsules, scores = network.capsules(images), network(images)
    network.train()
    assert capsules.shape[:6] == (3, 3, 1, 1, 1, 1)
    torch.testing.assert_close(scores, capsules.flatten(2).norm(dim=2))


def test_a_few_steps_reduce_the_loss(network):
    copied = copy.deepcopy(network)
    images, labels = images_for(copied, 6), torch.tensor([0, 1, 2, 0, 1, 2])
    optimiser = torch.optim.Adam(copied.parameters(), lr=0.001)
    before = loss_of(copied, images, labels).item()
    for _ in range(8):
        optimiser.zero_grad()
        loss = loss_of(copied, images, labels)
        loss.backward()
        optimiser.step()
    assert loss.item() < 0.8 * before


def test_a_saved_network_comes_back_with_its_statistics(network, tmp_path, request):
    name = request.node.callspec.params["network"]
    trained = copy.deepcopy(network)
    trained(images_for(trained))  # moves the statistics of batch norm
    save_model(trained.eval(), tmp_path / "m.safetensors", ModelInfo(name, SMALL[name], SMALL[name], 3))
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


@pytest.mark.parametrize("name", sorted({name for name, _, _ in COUNTS}))
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
    ],
)
def test_wrong_options_are_refused_by_name(name, options, message):
    with pytest.raises(ConfigError, match=message), torch.device("meta"):
        create_model(name, **options)


def test_batch_norm_a_decoder_and_several_losses_go_through_the_trainer(digits, tmp_path):
    recipe = RECIPES["dcnetpp"].replace(steps=3, batch_size=4, precision="fp32", log_every=1, augment=("crop:21",))
    trained = train(RunConfig("dcnetpp", "digits", "dcnetpp", recipe), digits, tmp_path)
    assert trained.model.in_shape == (1, 21, 21)
    assert trained.model.dense[0].last_norm.num_batches_tracked == 3
    losses = [row["loss"] for row in trained.history]
    # Four margin losses of a network that has learned nothing are 4 * 0.81, and the penalty is added.
    assert losses[0] > 3.2
    assert losses[-1] < losses[0]
