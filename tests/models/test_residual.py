"""The residual network that capsule networks learn from."""

import pytest
import torch

from purecaps import create_model
from purecaps.errors import ConfigError
from purecaps.models.guided import has_lengths, stack_obstacle
from purecaps.models.residual import ResidualBlock


def test_it_has_as_many_parameters_as_it_says():
    def block(inputs, outputs):
        fitted = 0 if inputs == outputs else inputs * outputs + 2 * outputs
        return 9 * inputs * outputs + 9 * outputs * outputs + 4 * outputs + fitted

    stages = [(32, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128)]
    expected = 27 * 32 + 64 + sum(block(*each) for each in stages) + 129 * 10
    assert sum(parameter.numel() for parameter in create_model("resnet").parameters()) == expected == 696_618


def test_its_maps_are_halved_twice():
    maps, sizes = torch.rand(1, 3, 24, 24), []
    for layer in create_model("resnet", in_shape=(3, 24, 24)).layers:
        maps = layer(maps) if maps.dim() == 4 else maps
        if isinstance(layer, ResidualBlock):
            sizes.append(tuple(maps.shape[1:]))
    assert sizes == [(32, 24, 24)] * 2 + [(64, 12, 12)] * 2 + [(128, 6, 6)] * 2


def test_a_block_adds_to_its_input():
    block = ResidualBlock(4, 4).eval()
    torch.nn.init.zeros_(block.second[1].weight)
    maps = torch.randn(2, 4, 5, 7)
    assert torch.equal(block(maps), maps.relu())


@pytest.mark.parametrize("in_shape", [(1, 16, 41), (3, 63, 17)])
def test_any_image_and_any_number_of_classes(in_shape):
    assert create_model("resnet", in_shape=in_shape, num_classes=3)(torch.rand(2, *in_shape)).shape == (2, 3)


def test_too_small_an_image_is_told_the_smallest_size():
    with pytest.raises(ConfigError, match=r"in_shape: .* at least 16x16 .* got 15x40"):
        create_model("resnet", in_shape=(3, 15, 40))


def test_its_scores_are_logits_and_its_statistics_are_its_own():
    model = create_model("resnet")
    assert not has_lengths(model)
    assert has_lengths(create_model("pcapsnet2"))
    assert "BatchNorm2d" in stack_obstacle(model)
