"""Small networks that the zoo's training is tested with."""

import torch
from torch import nn

from purecaps.models.cnn import ConvNet
from purecaps.models.decoder import Decoder
from purecaps.models.guided import Guided


def normalised(*, in_shape, num_classes, **options):
    """A network with batch normalisation."""
    # No bias: behind it is a normalisation, so that its gradient is rounding errors, which Adam makes whole steps of.
    layers = [nn.Conv2d(in_shape[0], 4, 5, stride=4, bias=False), nn.BatchNorm2d(4), nn.ReLU()]
    layers += [nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, num_classes)]
    return ConvNet(layers, in_shape=in_shape, num_classes=num_classes, **options)


class Reconstructing(nn.Module):
    """Two sets of scores, and an image made again from the true class's capsule."""

    def __init__(self, *, in_shape, num_classes):
        super().__init__()
        self.in_shape, self.num_classes = in_shape, num_classes
        numbers = in_shape[0] * in_shape[1] * in_shape[2]
        self.poses = nn.Linear(numbers, num_classes * 3)
        self.aside = nn.Linear(numbers, num_classes)
        self.decoder = Decoder(num_classes, 3, in_shape, widths=(8,), factor=0.01)

    def capsules(self, images):
        return self.poses(images.flatten(1)).unflatten(1, (self.num_classes, 3))

    def forward(self, images):
        return self.capsules(images).square().sum(dim=2)

    def guided(self, images, labels):
        capsules = self.capsules(images)
        _, penalty = self.decoder.penalised(capsules, labels, images)
        return Guided((capsules.square().sum(dim=2), self.aside(images.flatten(1)).sigmoid()), penalty)


def assert_same_state(left, right):
    """Weights and buffers, bit for bit."""
    mine, theirs = left.state_dict(), right.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert torch.equal(tensor, theirs[name]), f"{name}: expected bit for bit the same"
