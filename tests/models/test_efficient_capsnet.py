"""Efficient-CapsNet against its equations."""

import torch

from purecaps import create_model


def squashed(s):
    length = s.norm(dim=-1, keepdim=True)
    return (1 - (-length).exp()) * s / length


def test_the_network_is_the_papers():
    torch.manual_seed(0)
    network = create_model("efficient_capsnet", in_shape=(2, 13, 15), num_classes=3).double().eval()
    with torch.no_grad():
        network.classes.routing.prior.normal_()
        network.classes.transform.weight.mul_(8)
    images = torch.rand(5, 2, 13, 15, dtype=torch.float64)
    maps = network.stem(images)
    assert maps.shape == (5, 128, 2, 3)
    kernel, bias = network.primary.weight, network.primary.bias
    depthwise = torch.stack([(maps[:, n] * kernel[n, 0]).sum(dim=(1, 2)) + bias[n] for n in range(128)], dim=1)
    children = squashed(depthwise.reshape(5, 16, 8))
    weight = network.classes.transform.weight  # [16, 3, 8, 16]
    votes = torch.stack([children[:, n] @ weight[n] for n in range(16)], dim=0)  # [16, 3, 5, 16]
    agreement = torch.einsum("iobd,kobd->iob", votes, votes) / 4
    share = agreement.exp() / agreement.exp().sum(dim=1, keepdim=True) + network.classes.routing.prior[:, :, None]
    expected = squashed((share[..., None] * votes).sum(dim=0)).transpose(0, 1)
    torch.testing.assert_close(network.class_capsules(images).poses, expected)
    torch.testing.assert_close(network(images), expected.norm(dim=2))


def test_the_depthwise_kernel_is_as_large_as_the_map():
    assert create_model("efficient_capsnet").primary.weight.shape == (128, 1, 9, 9)
    assert create_model("efficient_capsnet", in_shape=(3, 32, 32)).primary.weight.shape == (128, 1, 11, 11)


def test_the_reconstruction_of_a_digit_costs_0_392_of_its_mean_square():
    network = create_model("efficient_capsnet").eval()
    images, labels = torch.rand(3, 1, 28, 28), torch.tensor([7, 0, 9])
    off = network.reconstruct(images, labels) - images
    torch.testing.assert_close(network.guided(images, labels).penalty, 0.392 * off.square().mean())


def test_the_authors_initial_deviations():
    torch.manual_seed(0)
    network = create_model("efficient_capsnet")
    expected = {
        "stem.0": (2 / 25) ** 0.5,
        "stem.3": (2 / (9 * 32)) ** 0.5,
        "stem.9": (2 / (9 * 64)) ** 0.5,
        "primary": (2 / (81 + 81 * 128)) ** 0.5,
        "classes.transform": (2 / (10 * 16 * 8)) ** 0.5,
    }
    found = {name: network.get_submodule(name).weight.std().item() for name in expected}
    for name, deviation in expected.items():
        assert abs(found[name] / deviation - 1) < 0.06, (name, found[name], deviation)
