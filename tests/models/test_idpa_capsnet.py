"""Inverted dot-product attention: concurrent routing against a slow one, and scores that are logits."""

import pytest
import torch
import torch.nn.functional as F

from purecaps import create_model
from purecaps.evaluate.attacks.loss import default_loss


def votes_of(layer, poses, stride=None):
    """Votes [B, H', W', I, O, 16] of a convolutional layer, or [B, I, O, 16] of a fully connected one."""
    if stride is None:
        children = poses.flatten(1, 3)
    else:
        rows, columns = ((size - 3) // stride + 1 for size in poses.shape[1:3])
        windows = [
            poses[:, i * stride : i * stride + 3, j * stride : j * stride + 3].flatten(1, 3)
            for i in range(rows)
            for j in range(columns)
        ]
        children = torch.stack(windows, dim=1).unflatten(1, (rows, columns))
    matrices = children.unflatten(-1, (4, 4))[..., :, None, :, :] @ layer.transform.weight
    return matrices.flatten(-2)


def parents_of(layer, votes, parents):
    if parents is None:
        share = torch.full(votes.shape[:-1], 1 / votes.shape[-2], dtype=votes.dtype)
    else:
        share = ((votes * parents.unsqueeze(-3)).sum(dim=-1) / 4).softmax(dim=-1)
    mixed = (share[..., None] * votes).sum(dim=-3)
    return F.layer_norm(mixed, (16,), layer.routing.scale, layer.routing.shift)


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_all_layers_are_routed_at_once(iterations):
    torch.manual_seed(0)
    network = create_model("idpa_capsnet", in_shape=(1, 15, 17), num_classes=3, iterations=iterations).double().eval()
    images = torch.rand(2, 1, 15, 17, dtype=torch.float64)
    maps = network.primary(network.stem(images)).permute(0, 2, 3, 1)
    primary = F.layer_norm(maps.unflatten(-1, (32, 16)), (16,))
    layers, strides = list(network.routed), (2, 1, None)
    found = [primary]
    for layer, stride in zip(layers, strides, strict=True):
        found.append(parents_of(layer, votes_of(layer, found[-1], stride), None))
    for _ in range(iterations - 1):
        old = list(found)
        for n, (layer, stride) in enumerate(zip(layers, strides, strict=True)):
            found[n + 1] = parents_of(layer, votes_of(layer, old[n], stride), old[n + 1])
    poses, scores = network.class_capsules(images)
    torch.testing.assert_close(poses, found[-1])
    torch.testing.assert_close(scores, found[-1] @ network.head.weight[0] + network.head.bias)


def test_maps_have_the_published_sizes():
    network = create_model("idpa_capsnet").eval()
    sizes = []
    for layer in network.routed[:2]:
        layer.register_forward_hook(lambda *call: sizes.append(tuple(call[2].poses.shape[1:])))
    with torch.no_grad():
        network(torch.rand(1, 3, 32, 32))
    assert sizes == [(7, 7, 32, 16), (5, 5, 32, 16)] * 2
    assert network.routed[2].in_caps == 800


def test_its_scores_are_logits_to_those_who_read_them():
    torch.manual_seed(0)
    network = create_model("idpa_capsnet", in_shape=(1, 13, 13))
    assert default_loss(network).scale == 1.0
    assert default_loss(create_model("efficient_capsnet")).scale > 1
    scores = network(torch.rand(8, 1, 13, 13))
    assert (scores < 0).any()
    assert (scores > 0).any()
