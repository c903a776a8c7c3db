"""DCNet's dense block, and the four sets of class capsules of DCNet++."""

import itertools

import pytest
import torch

from purecaps.models.dcnet import DCNet, DCNetPP, DenseBlock

IMAGES = torch.rand(2, 3, 21, 25, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def pp():
    torch.manual_seed(0)
    return DCNetPP(in_shape=(3, 21, 25), num_classes=4).eval()


def test_each_convolution_of_a_dense_block_sees_all_before_it():
    block = DenseBlock(3, layers=4, growth=5).eval()
    assert [conv.in_channels for conv in block.convs] == [3, 8, 13, 18]
    seen = []
    for norm in block.norms:
        norm.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    maps = torch.randn(2, 3, 6, 7)
    normed = block(maps)
    assert normed.shape == (2, 23, 6, 7)
    assert torch.equal(seen[0], maps)
    for earlier, later in itertools.pairwise(seen):
        assert torch.equal(later[:, : earlier.shape[1]], earlier)
    # In eval mode a fresh batch norm divides by sqrt(1 + eps) alone.
    torch.testing.assert_close(normed[:, :18], seen[-1] / (1 + 1.1e-5) ** 0.5)


def test_a_convolution_comes_after_batch_norm_and_relu():
    block = DenseBlock(2, layers=1, growth=3).train()
    maps = torch.randn(4, 2, 5, 5) * 3 + 1
    centred = (maps - maps.mean(dim=(0, 2, 3), keepdim=True)) / maps.std(dim=(0, 2, 3), keepdim=True, unbiased=False)
    block.last_norm = torch.nn.Identity()
    torch.testing.assert_close(block(maps)[:, 2:], block.convs[0](centred.relu()), rtol=1e-4, atol=1e-4)


def test_dcnet_has_a_ten_by_ten_map_of_primary_capsules_on_mnist():
    with torch.device("meta"):
        assert DCNet().classes.in_caps == 10 * 10 * 32


def test_every_level_and_all_together_have_a_loss_of_their_own(pp):
    scores, _ = pp.guided(IMAGES, torch.tensor([1, 3]))
    merged, *levels = pp.levels(IMAGES)
    assert [level.poses.shape[2] for level in (merged, *levels)] == [16, 16, 12, 10]
    for found, level in zip(scores, (merged, *levels), strict=True):
        torch.testing.assert_close(found, level.poses.norm(dim=2))
        assert found.shape == (2, 4)


def test_the_merged_capsules_have_the_children_of_all_levels(pp):
    # Maps of 9x11, 3x4 and 1x1, each with 12 types.
    assert [layer.in_caps for layer in pp.classes] == [99 * 12, 12 * 12, 12]
    assert pp.merged.in_caps == (99 + 12 + 1) * 12


def test_scores_are_of_the_four_capsules_joined(pp):
    scores, _ = pp.guided(IMAGES, torch.tensor([1, 3]))
    torch.testing.assert_close(pp(IMAGES), torch.stack(scores).square().sum(dim=0).sqrt())
    assert pp.capsules(IMAGES).shape == (2, 4, 1, 1, 1, 1, 54)


def test_the_decoder_makes_one_channel_of_a_colour_image(pp):
    labels = torch.tensor([1, 3])
    again = pp.reconstruct(IMAGES, labels)
    assert again.shape == (2, 1, 21, 25)
    penalty = 0.0005 * (again - IMAGES[:, 2:]).square().sum(dim=(1, 2, 3)).mean()
    torch.testing.assert_close(pp.guided(IMAGES, labels).penalty, penalty)


def test_a_level_sees_the_primary_maps_before_it_unsquashed(pp):
    seen = {}
    handles = [
        pp.primary[0].register_forward_hook(lambda module, inputs, output: seen.update(first=output)),
        pp.dense[1].register_forward_hook(lambda module, inputs, output: seen.update(second=inputs[0])),
    ]
    pp(IMAGES)
    for handle in handles:
        handle.remove()
    assert torch.equal(seen["second"], seen["first"].relu())
