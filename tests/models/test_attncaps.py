"""Atten-Caps against a slow network written from the paper's equations."""

import pytest
import torch
import torch.nn.functional as F

from purecaps import create_model
from purecaps.models.attncaps import AttentionCapsNet


def small(**options):
    torch.manual_seed(0)
    network = AttentionCapsNet(in_shape=(2, 9, 6), num_classes=3, pose_size=5, **options).double()
    with torch.no_grad():  # so that attention is far from equal
        for parameter in network.parameters():
            parameter.mul_(4).add_(0.02)
    return network.eval()


def routed_slowly(layer, poses, stride, padding):
    """Attention routing of poses [B, H, W, C, D], channel by channel and parent by parent."""
    transform, routing = layer.transform, layer.routing
    votes = torch.stack(
        [
            torch.stack(
                [
                    F.conv2d(
                        poses[:, :, :, child].permute(0, 3, 1, 2),
                        transform.weight[child, parent],
                        transform.bias[child, parent],
                        stride,
                        padding,
                    )
                    for parent in range(transform.weight.shape[1])
                ],
                dim=1,
            )
            for child in range(transform.weight.shape[0])
        ],
        dim=1,
    )  # [B, C, O, D, H', W']
    parents = []
    for parent in range(votes.shape[2]):
        seen = votes[:, :, parent]  # [B, C, D, H', W']
        logits = torch.einsum("bcdhw,cdn->bnhw", seen, routing.weight[parent])
        share = logits.exp() / logits.exp().sum(dim=1, keepdim=True)
        pose = (share[:, :, None] * seen).sum(dim=1)
        parents.append(torch.einsum("bdhw,de->bhwe", pose, routing.transform[parent]) + routing.bias[parent])
    return torch.stack(parents, dim=3)  # [B, H', W', O, D]


@pytest.mark.parametrize("layers", [1, 3])
def test_the_network_is_the_papers(layers):
    network = small(layers=layers)
    images = torch.rand(4, 2, 9, 6, dtype=torch.float64)
    maps = network.primary(network.stem(images)).relu()
    types = [
        maps[:, 16 * n : 16 * (n + 1)].permute(0, 2, 3, 1) @ network.activation.weight[n] + network.activation.bias[n]
        for n in range(8)
    ]
    poses = torch.stack(types, dim=3).tanh()
    poses = routed_slowly(network.routed[0], poses, 2, 1).tanh()
    for layer in network.routed[1:]:
        poses = (poses + routed_slowly(layer, poses, 1, 1)).tanh()
    assert poses.shape == (4, 3, 2, 8, 5)
    expected = routed_slowly(network.classes, poses, 1, 0)[:, 0, 0].tanh()
    torch.testing.assert_close(network.class_capsules(images).poses, expected)
    torch.testing.assert_close(network(images), expected.norm(dim=2) / 5**0.5)
    assert (network(images) < 1).all()


def test_the_reconstruction_costs_0_3_of_its_mean_square():
    network = small()
    images, labels = torch.rand(4, 2, 9, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 2])
    found = network.reconstruct(images, labels)
    torch.testing.assert_close(network.guided(images, labels).penalty, 0.3 * (found - images).square().mean())


def test_dropout_acts_in_training_alone():
    network = small()
    images = torch.rand(4, 2, 9, 6, dtype=torch.float64)
    assert torch.equal(network(images), network(images))
    network.stem.eval()
    network.dropout.train()
    assert not torch.equal(network(images), network(images))


def test_maps_are_halved_twice():
    with torch.no_grad():
        network = create_model("attncaps_cifar", decoder=False).eval()
        assert len(network.routed) == 4
        assert network.primary(network.stem(torch.rand(1, 3, 32, 32))).shape == (1, 128, 16, 16)
        assert network.routed[0](torch.rand(1, 16, 16, 8, 16)).poses.shape == (1, 8, 8, 8, 32)
