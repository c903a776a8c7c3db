"""MS-CapsNet: its branches, one routing over capsules of three sizes, and capsule dropout."""

import pytest
import torch
import torch.nn.functional as F

from purecaps.models.mscaps import MSCapsNet
from purecaps.nn import recompute
from purecaps.nn.routing import dynamic, squash

SHAPE = (2, 19, 22)
IMAGES = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return MSCapsNet(in_shape=SHAPE, num_classes=3).eval()


@pytest.mark.parametrize("size", [(17, 17), (19, 22), (20, 31)])
def test_the_three_branches_have_maps_of_one_size(size):
    with torch.device("meta"):
        network = MSCapsNet(in_shape=(1, *size))
        maps = network.conv(torch.empty(1, 1, *size))
        shapes = {tuple(branch(maps).shape[2:]) for branch in network.branches}
    ((height, width),) = shapes
    assert network.branch_children == height * width * 30


@torch.no_grad()
def test_a_type_has_layers_of_its_own(network):
    kind, maps = 7, torch.randn(2, 256, 11, 12)
    first, _, second, norm, _, third = network.branches[2]
    own = F.conv2d(maps, first.weight[32 * kind : 32 * kind + 32], first.bias[32 * kind : 32 * kind + 32], 2, 1).relu()
    middle = slice(16 * kind, 16 * kind + 16)
    own = F.conv2d(own, second.weight[middle], second.bias[middle])
    own = (own / (1 + norm.eps) ** 0.5).tanh()  # a fresh batch norm, in eval mode
    own = F.conv2d(own, third.weight[12 * kind : 12 * kind + 12], third.bias[12 * kind : 12 * kind + 12])
    found = network.branches[2](maps)[:, 12 * kind : 12 * kind + 12]
    torch.testing.assert_close(found, own, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_capsules_of_all_sizes_are_routed_together(network):
    maps = network.conv(IMAGES).relu()
    votes = []
    for branch, size, transform in zip(network.branches, (4, 8, 12), network.transforms, strict=True):
        numbers = branch(maps)
        poses = numbers.view(3, 30, size, *numbers.shape[2:]).permute(0, 3, 4, 1, 2).flatten(1, 3)
        votes.append(torch.einsum("bid,iode->bioe", squash(poses), transform.weight))
    expected = dynamic(torch.cat(votes, dim=1), iterations=3)
    torch.testing.assert_close(network(IMAGES), expected.activations, rtol=1e-4, atol=1e-6)


def test_a_batch_in_parts_has_the_scores_and_gradients_of_the_whole(network, monkeypatch):
    def scores_and_gradients():
        scores = network(IMAGES)
        return [scores, *torch.autograd.grad(scores.square().sum(), list(network.parameters()))]

    whole = scores_and_gradients()
    monkeypatch.setattr(recompute, "VOTES_AT_ONCE", 1)
    for part, expected in zip(scores_and_gradients(), whole, strict=True):
        torch.testing.assert_close(part, expected, rtol=1e-3, atol=1e-5)


def test_dropout_leaves_out_whole_capsules_in_training_only():
    torch.manual_seed(0)
    network = MSCapsNet(in_shape=SHAPE, num_classes=3, dropout=0.25)
    routed = {}
    handles = [
        transform.register_forward_hook(lambda module, inputs, output, size=size: routed.update({size: inputs[0]}))
        for transform, size in zip(network.transforms, (4, 8, 12), strict=True)
    ]
    network(IMAGES)
    dropped = dict(routed)
    network.dropout = 0.0
    network(IMAGES)
    whole = dict(routed)
    for size in (4, 8, 12):
        out = (dropped[size] == 0).all(dim=2)
        assert 0.15 < out.float().mean() < 0.35, "a quarter of the capsules"
        torch.testing.assert_close(dropped[size][~out], whole[size][~out] / 0.75)
    network.dropout = 0.25
    network.eval()
    before = network(IMAGES)
    assert torch.equal(network(IMAGES), before)
    for handle in handles:
        handle.remove()
