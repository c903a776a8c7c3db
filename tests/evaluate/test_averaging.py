"""Test-time averaging over windows and mirror images."""

import pytest
import torch
from torch import nn

from purecaps.errors import ConfigError
from purecaps.evaluate.averaging import NINE, AveragedViews


class Corners(nn.Module):
    """Scores that tell which pixels a view begins and ends with."""

    def forward(self, images):
        return torch.stack([images[:, 0, 0, 0], images[:, 0, 0, -1], images[:, 0, -1, 0]], dim=1)


def images(height=7, width=9):
    return torch.arange(2.0 * height * width).view(2, 1, height, width)


def test_without_a_mirror_image_the_centre_is_the_centre_crop():
    whole = images()
    scores = AveragedViews(Corners(), (3, 5), mirror=False)(whole)
    assert torch.equal(scores, Corners()(whole[:, :, 2:5, 2:7]))


def test_the_mirror_image_counts_as_much_as_the_image():
    whole = images()
    crop = whole[:, :, 2:5, 2:7]
    expected = (Corners()(crop) + Corners()(crop.flip(-1))) / 2
    torch.testing.assert_close(AveragedViews(Corners(), (3, 5))(whole), expected)


def test_shifts_go_down_and_across():
    whole = images()
    scores = AveragedViews(Corners(), (3, 5), shifts=[(-2, 1), (1, -2)], mirror=False)(whole)
    expected = (Corners()(whole[:, :, 0:3, 3:8]) + Corners()(whole[:, :, 3:6, 0:5])) / 2
    torch.testing.assert_close(scores, expected)


def test_nine_windows_of_cifar_fit():
    assert len(set(NINE)) == 9
    seen = []

    class Watch(nn.Module):
        def forward(self, batch):
            seen.append(tuple(batch.shape))
            return batch.flatten(1)[:, :10]

    assert AveragedViews(Watch(), (24, 24), shifts=NINE)(torch.rand(5, 3, 32, 32)).shape == (5, 10)
    assert seen == [(5, 3, 24, 24)] * 18


def test_windows_outside_the_image_are_refused():
    with pytest.raises(ConfigError, match="3x5 inside images of 7x9, got one 3 down and 0 across"):
        AveragedViews(Corners(), (3, 5), shifts=[(3, 0)])(images())
    with pytest.raises(ConfigError, match="expected at least one window, got none"):
        AveragedViews(Corners(), (3, 5), shifts=[])
