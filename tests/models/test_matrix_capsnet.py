"""Matrix capsules with EM and variational Bayes routing, and the reconstructions with kernel-density routing."""

import pytest
import torch

from purecaps import create_model
from purecaps.errors import ConfigError
from purecaps.nn.routing import create_routing
from purecaps.nn.windows import MapCompetition


def sizes_of_maps(network):
    """(height, width, capsules) of each capsule layer's output, primary capsules first."""
    sizes = []
    layers = [network.primary, *network.routed]
    hooks = [layer.register_forward_hook(lambda *call: sizes.append(call[2].poses.shape[1:4])) for layer in layers]
    with torch.no_grad():
        network.eval()(torch.rand(1, *network.in_shape))
    for hook in hooks:
        hook.remove()
    return [tuple(size) for size in sizes]


@pytest.mark.parametrize(
    ("name", "in_shape", "sizes"),
    [
        ("capsnet_em", (1, 28, 28), [(12, 12, 32), (5, 5, 32), (3, 3, 32)]),
        ("capsnet_em", (2, 32, 32), [(14, 14, 32), (6, 6, 32), (4, 4, 32)]),  # the paper's figure 1
        ("capsnet_em_cifar", None, [(10, 10, 32), (4, 4, 32), (2, 2, 32)]),
        ("capsnet_vb", (1, 32, 32), [(14, 14, 8), (6, 6, 16), (4, 4, 16)]),
        ("frms", None, [(7, 7, 32), (5, 5, 32)]),
        ("frem", (3, 32, 32), [(8, 8, 32), (6, 6, 32)]),
    ],
)
def test_maps_have_the_sizes_of_the_design(name, in_shape, sizes):
    assert sizes_of_maps(create_model(name, in_shape=in_shape)) == sizes


@pytest.mark.parametrize("name", ["capsnet_em", "capsnet_em_cifar", "capsnet_vb", "capsnet_vb_cifar"])
def test_parents_of_all_windows_share_a_child_and_classes_know_its_place(name):
    with torch.device("meta"):
        network = create_model(name)
    assert all(isinstance(layer.compete, MapCompetition) for layer in network.routed)
    assert network.classes.shared
    assert network.classes.coordinates


def test_parents_of_all_types_compete_but_in_em_networks_as_their_authors_code_has_it():
    with torch.device("meta"):
        networks = [
            create_model("capsnet_em"),
            create_model("capsnet_em", competition="map"),
            create_model("capsnet_vb"),
        ]
    assert [network.routed[0].compete.types_compete for network in networks] == [False, True, True]


def test_em_networks_start_neither_silent_nor_saturated_and_with_classes_that_differ():
    torch.manual_seed(0)
    network = create_model("capsnet_em")
    found = []
    hooks = [layer.register_forward_hook(lambda *call: found.append(call[2].activations)) for layer in network.routed]
    with torch.no_grad():
        scores = network(torch.rand(4, 1, 28, 28))
    for hook in hooks:
        hook.remove()
    assert all(0.3 < activations.mean() < 0.95 for activations in (*found, scores))
    assert scores.std(dim=1).mean() > 1e-4  # 1e-6 from deviations of 0.01


def test_an_optimiser_can_silence_a_class_that_nothing_votes_for():
    """Else no margin above 0.5 between two classes could be reached, and the spread loss asks for 0.9."""
    routing = create_routing("em", children=6, parents=3, pose_size=4)
    votes, nobody = torch.rand(1, 6, 3, 4), torch.zeros(1, 6)
    optimiser = torch.optim.Adam(routing.parameters(), lr=0.003)
    before = routing(votes, nobody).activations.detach()
    for _ in range(200):
        optimiser.zero_grad()
        routing(votes, nobody).activations.sum().backward()
        optimiser.step()
    assert before.allclose(torch.full((1, 3), 0.5))
    assert (routing(votes, nobody).activations < 0.1).all()


def test_em_starts_from_the_authors_deviations_but_for_the_classes():
    torch.manual_seed(0)
    network = create_model("capsnet_em")
    poses, presence = network.primary.conv.weight.split([512, 32])
    cut = 0.8796  # what cutting off at two deviations leaves of one
    for weight, deviation in [
        (network.stem[0].weight, 0.05),
        (poses, 0.5),
        (presence, 3.0),
        (network.routed[0].transform.weight, 0.3),
        (network.routed[1].transform.weight, 0.3),
        (network.classes.transform.weight, 0.5),
    ]:
        assert weight.std().item() == pytest.approx(cut * deviation, rel=0.06)
        assert weight.abs().max() <= 2 * deviation
    assert (network.stem[0].bias == 0.1).all()


def test_new_weights_follow_the_generator():
    network = create_model("capsnet_em", widths=(4, 3, 2, 2))
    drawn = []
    for _ in range(2):
        network.reset_parameters(torch.Generator().manual_seed(3))
        drawn.append([parameter.detach().clone() for parameter in network.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*drawn, strict=True))


@pytest.mark.parametrize("name", ["capsnet_em", "capsnet_vb"])
def test_one_iteration_is_another_network_than_three(name):
    torch.manual_seed(0)
    options = {"in_shape": (1, 17, 17), "num_classes": 3, "widths": (8, 5, 4, 3)}
    one, three = (create_model(name, iterations=count, **options) for count in (1, 3))
    one.load_state_dict(three.state_dict())
    images = torch.rand(4, 1, 17, 17)
    assert not torch.allclose(one(images), three(images), rtol=1e-6)
    assert all(((scores > 0) & (scores < 1)).all() for scores in (one(images), three(images)))


def test_variational_networks_normalise_over_the_batch():
    torch.manual_seed(0)
    network = create_model("capsnet_vb", in_shape=(1, 17, 17), num_classes=3)
    poses, activations = network.class_capsules(torch.rand(8, 1, 17, 17))
    torch.testing.assert_close(poses.mean(dim=(0, 2)), torch.zeros(3), rtol=0, atol=1e-4)
    torch.testing.assert_close(activations.logit().mean(dim=0), torch.zeros(3), rtol=0, atol=1e-4)


def test_kernel_density_networks_differ_in_the_routing_alone():
    torch.manual_seed(0)
    frms, frem = (create_model(name, in_shape=(1, 13, 13), num_classes=3) for name in ("frms", "frem"))
    frem.load_state_dict(frms.state_dict())
    images = torch.rand(4, 1, 13, 13)
    assert not torch.allclose(frms(images), frem(images), rtol=1e-4)
    torch.testing.assert_close(frms(images), frms.capsules(images).flatten(2).norm(dim=2))


def test_random_votes_keep_their_childrens_length_in_kernel_density_networks():
    torch.manual_seed(0)
    network = create_model("frms")
    children = torch.randn(64, 9 * 32, 16) * 0.1
    means = network.routed[0].transform(network.gains[0] * children).mean(dim=1)  # [64, 32, 16]
    assert means.norm(dim=2).mean().item() == pytest.approx(children.norm(dim=2).mean().item(), rel=0.05)


def test_kernel_density_networks_start_from_weights_that_small_steps_can_move():
    network = create_model("frms")
    for layer in (*network.routed, network.classes):
        assert layer.transform.weight.std().item() == pytest.approx(0.1, rel=0.02)


@pytest.mark.parametrize("name", ["frms", "idpa_capsnet"])
def test_a_network_can_have_fewer_capsule_types(name):
    network = create_model(name, in_shape=(1, 17, 17), num_classes=3, capsules=4)
    assert network(torch.rand(2, 1, 17, 17)).shape == (2, 3)
    assert all(layer.in_caps == 4 for layer in network.routed[:1])


@pytest.mark.parametrize("name", ["idpa_capsnet", "frms", "frem"])
@pytest.mark.parametrize("capsules", [0, -1, 2.5])
def test_a_number_of_capsule_types_that_makes_no_sense_is_refused(name, capsules):
    with pytest.raises(ConfigError, match=f"capsules: expected an int >= 1, got {capsules}"):
        create_model(name, capsules=capsules)
