"""The networks that are timed: registered ones, and others made of layers of one's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from purecaps.errors import ConfigError
from purecaps.models import Layer, PCapsNet, create_model
from purecaps.models.images import ImageShape
from purecaps.models.store import pretrained_path


@dataclass(frozen=True)
class Subject:
    """A P-CapsNet to be timed.

    Args:
        name: what the table calls it.
        build: (impl, trained) -> the network; `trained` asks for packaged weights where there are any.
    """

    name: str
    build: Callable[[str, bool], PCapsNet]


def registered(name: str) -> Subject:
    """A network by the name that `create_model` knows."""
    with torch.device("meta"):  # no weights are needed to tell what it is
        if not isinstance(create_model(name), PCapsNet):
            raise ConfigError(f"models: expected P-CapsNets, got {name!r}")

    def build(impl: str, trained: bool) -> PCapsNet:
        network = create_model(name, pretrained=trained and pretrained_path(name) is not None, impl=impl)
        assert isinstance(network, PCapsNet)
        return network

    return Subject(name, build)


def of_layers(name: str, layers: Sequence[Layer], in_shape: ImageShape) -> Subject:
    """A network that no name stands for."""
    return Subject(name, lambda impl, trained: PCapsNet(layers, in_shape=in_shape, impl=impl))


def layers_of(network: PCapsNet) -> list[Layer]:
    """What `PCapsNet` was given to build a network."""
    layers = []
    for block in network.capsule_blocks():
        kernel, _, _, out, g, n, p = block.conv.weight.shape
        geometry = block.conv.geometry
        layers.append(Layer(out, n, p, geometry.stride[0], kernel, geometry.padding[0], g))
    return layers
