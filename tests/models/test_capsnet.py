"""CapsNet against its equations, and what its options do."""

import pytest
import torch
import torch.nn.functional as F

from purecaps import create_model
from purecaps.models.capsnet import CapsNet

SHAPE = (2, 18, 17)


def slow_scores(network, image, *, iterations, leaky):
    """One image's scores, capsule by capsule, from the paper's equations and the authors' primary layer."""
    maps = F.conv2d(image[None], network.conv.weight, network.conv.bias).relu()
    maps = F.conv2d(maps, network.primary.weight, stride=2)[0]
    types = len(maps) // 8
    children = []
    for y in range(maps.shape[1]):
        for x in range(maps.shape[2]):
            for kind in range(types):
                numbers = maps[8 * kind : 8 * kind + 8, y, x] / (types + leaky)
                children.append(squashed(numbers + network.primary_bias[kind]))
    votes = [
        [child @ network.classes.transform.weight[number, parent] for parent in range(network.num_classes)]
        for number, child in enumerate(children)
    ]
    logits = torch.zeros(len(children), network.num_classes + leaky, dtype=image.dtype)
    for _ in range(iterations):
        shares = logits.softmax(dim=1)
        parents = []
        for parent, bias in enumerate(network.classes.routing.bias):
            total = bias.clone()
            for number in range(len(children)):
                total = total + shares[number, parent] * votes[number][parent]
            parents.append(squashed(total))
        for number in range(len(children)):
            for parent in range(network.num_classes):
                logits[number, parent] += votes[number][parent] @ parents[parent]
    return torch.stack([parent.norm() for parent in parents])


def squashed(numbers):
    square = numbers @ numbers
    return square / (1 + square) * numbers / square.sqrt()


@pytest.mark.parametrize(("iterations", "leaky"), [(1, False), (3, False), (3, True)])
@torch.no_grad()
def test_scores_are_those_of_the_equations(iterations, leaky):
    torch.manual_seed(0)
    network = CapsNet(in_shape=SHAPE, num_classes=3, types=5, iterations=iterations, leaky=leaky).double()
    for parameter in network.parameters():
        if parameter.dim() < 3:
            parameter.normal_(0, 0.1)  # all biases start alike, which would hide one in the wrong place
    images = torch.rand(2, *SHAPE, dtype=torch.float64)
    expected = torch.stack([slow_scores(network, image, iterations=iterations, leaky=leaky) for image in images])
    torch.testing.assert_close(network(images), expected, rtol=1e-10, atol=1e-12)


def test_more_iterations_are_another_network_with_the_same_weights():
    once, thrice = (CapsNet(in_shape=SHAPE, types=4, iterations=iterations) for iterations in (1, 3))
    thrice.load_state_dict(once.state_dict())
    images = torch.rand(2, *SHAPE)
    assert not torch.allclose(once(images), thrice(images), rtol=1e-3)


def test_names_are_configurations():
    with torch.device("meta"):
        iterations = [create_model(name).classes.routing.iterations for name in ("capsnet_dr", "capsnet_dr1")]
        cifar = create_model("capsnet_dr_cifar")
        overridden = create_model("capsnet_dr1", iterations=2)
    assert iterations == [3, 1]
    assert overridden.classes.routing.iterations == 2
    assert (cifar.in_shape, cifar.classes.routing.leaky, cifar.decoder) == ((3, 24, 24), True, None)
    assert cifar.classes.in_caps == 12 * 12 * 64, "padded maps of 24x24, then 12x12"


def test_initial_weights_are_the_authors():
    torch.manual_seed(0)
    network = CapsNet(in_shape=SHAPE, types=4)
    for name, parameter in network.named_parameters():
        if "bias" in name:
            assert (parameter == 0.1).all()
            continue
        std = 0.05 if name == "conv.weight" else 0.1
        assert parameter.abs().max() <= 2 * std, name
        # A normal distribution cut off at two deviations keeps 0.88 of its own.
        assert parameter.std().item() == pytest.approx(0.88 * std, rel=0.03), name


def test_a_seed_is_a_network():
    first, second, other = (CapsNet(in_shape=SHAPE, types=2, decoder=False) for _ in range(3))
    for network, seed in ((first, 4), (second, 4), (other, 5)):
        network.reset_parameters(torch.Generator().manual_seed(seed))
    assert torch.equal(first.classes.transform.weight, second.classes.transform.weight)
    assert not torch.equal(first.classes.transform.weight, other.classes.transform.weight)


def test_reconstruction_weighs_twenty_times_the_papers_as_in_the_authors_code():
    network = create_model("capsnet_dr", in_shape=(1, 20, 20), num_classes=3)
    images = torch.rand(2, 1, 20, 20)
    found = network.decoder.penalised(network.class_capsules(images).poses, torch.tensor([0, 2]), images)
    squares = (found.images - images).square().sum(dim=(1, 2, 3)).mean()
    torch.testing.assert_close(found.penalty, 20 * 0.0005 * squares)
