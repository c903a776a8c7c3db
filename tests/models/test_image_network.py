"""What the networks with routing share: checks, standardisation, the count of their work, and the decoder's hook."""

import pytest
import torch
from torch import nn

from purecaps.errors import ConfigError
from purecaps.models.class_capsules import ClassCapsules
from purecaps.models.decoder import Decoder
from purecaps.models.images import ImageNetwork
from purecaps.nn.routing import Capsules

IMAGES = torch.rand(4, 2, 5, 7, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([2, 0, 1, 2])


class Averages(ImageNetwork):
    def __init__(self, **options):
        super().__init__((2, 5, 7), 3, **options)
        self.conv = nn.Conv2d(2, 4, 3, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, images):
        return self.head(self.norm(self.conv(self.standardised(images))).mean(dim=(2, 3)))


class Linear(ClassCapsules):
    """Class capsules of six numbers, read as 2 x 3 matrices."""

    pose_rows = 2

    def __init__(self, *, decoder=True, **options):
        super().__init__((2, 5, 7), 3, **options)
        self.layer = nn.Linear(70, 18)
        if decoder:
            self.decoder = Decoder(3, 6, (2, 5, 7), widths=(8,), factor=0.01)

    def class_capsules(self, images):
        poses = self.layer(self.standardised(images).flatten(1)).unflatten(1, (3, 6))
        return Capsules(poses, poses.square().sum(dim=2))


def test_images_are_standardised_by_channel():
    found = Averages(mean=(0.5, 0.25), std=(2.0, 4.0)).standardised(IMAGES)
    torch.testing.assert_close(found, torch.stack([(IMAGES[:, 0] - 0.5) / 2, (IMAGES[:, 1] - 0.25) / 4], dim=1))
    assert Averages().standardised(IMAGES) is IMAGES


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Averages(smallest=6), "in_shape: expected images of at least 6x6 for this network, got 5x7"),
        (lambda: Averages(mean=(0.5,)), r"mean: expected 2 numbers, one a channel, got \(0.5,\)"),
        (lambda: Averages()(IMAGES[:, :, :4]), r"images: expected \[B, 2, 5, 7\], got \[4, 2, 4, 7\]"),
        (lambda: Averages()(IMAGES[0]), r"images: expected \[B, 2, 5, 7\], got \[2, 5, 7\]"),
        (lambda: Averages()(IMAGES.double()), "images: expected torch.float32, as .* are, got torch.float64"),
        (lambda: Averages()(IMAGES.to(torch.uint8)), r"images \(in \[0, 1\]\).* got torch.uint8"),
        (lambda: ImageNetwork((28, 28), 10), r"in_shape: .* got \(28, 28\)"),
        (lambda: ImageNetwork((1, 28, 28), 1), "num_classes: expected an int >= 2, got 1"),
        (lambda: Linear(decoder=False).reconstruct(IMAGES), "decoder: .* decoder=True, got one without"),
    ],
)
def test_wrong_arguments_are_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_the_work_is_counted_without_touching_the_network(device):
    network = Averages(mean=(0.5, 0.5)).to(device)
    assert network.multiply_adds() == 3 * 5 * 4 * 2 * 9 + 4 * 3
    assert network.training
    assert {tensor.device.type for tensor in network.state_dict().values()} == {device}
    if device == "cpu":
        assert network.conv.weight.std() > 0
        assert network.norm.num_batches_tracked == 0


def test_capsules_have_the_librarys_seven_axes():
    network = Linear()
    capsules = network.capsules(IMAGES)
    assert capsules.shape == (4, 3, 1, 1, 1, 2, 3)
    assert torch.equal(capsules.flatten(2), network.class_capsules(IMAGES).poses)


def test_the_penalty_is_of_the_true_classs_capsule_and_of_unstandardised_pixels():
    network = Linear(mean=(0.5, 0.5), std=(2.0, 2.0))
    (scores,), penalty = network.guided(IMAGES, LABELS)
    assert torch.equal(scores, network(IMAGES))
    off = network.reconstruct(IMAGES, LABELS) - IMAGES
    torch.testing.assert_close(penalty, 0.01 * off.square().sum(dim=(1, 2, 3)).mean())
    assert penalty != network.guided(IMAGES, (LABELS + 1) % 3).penalty


def test_without_labels_the_longest_capsule_is_reconstructed():
    network = Linear()
    assert torch.equal(network.reconstruct(IMAGES), network.reconstruct(IMAGES, network(IMAGES).argmax(dim=1)))


def test_without_a_decoder_there_is_no_penalty():
    network = Linear(decoder=False)
    assert network.guided(IMAGES, LABELS).penalty == 0
    assert [name for name, _ in network.named_parameters()] == ["layer.weight", "layer.bias"]


def test_under_autocast_images_need_not_be_of_the_weights_type():
    network = Averages().eval()
    with torch.autocast("cpu", torch.bfloat16):
        found = network(IMAGES.bfloat16())
    torch.testing.assert_close(found.float(), network(IMAGES), atol=0.05, rtol=0.05)
