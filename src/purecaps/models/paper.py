"""The five networks of the paper, numbered as its tables number them.

The paper's appendix swaps #0 and #3: its "#0" is the network of 22,176 parameters, here `pcapsnet3`, and its "#3"
the one of 170,784, here `pcapsnet0`.
"""

from __future__ import annotations

from typing import Any

from purecaps.models.pcapsnet import Layer, PCapsNet
from purecaps.models.registry import register_model

MNIST = (1, 28, 28)
CIFAR_CROP = (3, 24, 24)


@register_model(in_shape=MNIST)
def pcapsnet0(**options: Any) -> PCapsNet:
    """P-CapsNets#0: 170,784 parameters, the paper's best on MNIST."""
    return PCapsNet(
        [
            Layer(1, None, 32, stride=2),
            Layer(4, 8, 16),
            Layer(8, 16, 8, stride=2),
            Layer(4, 8, 16),
            Layer(None, 16, 16),
        ],
        **options,
    )


@register_model(in_shape=MNIST)
def pcapsnet1(**options: Any) -> PCapsNet:
    """P-CapsNets#1: 2,952 parameters, the paper's smallest."""
    return PCapsNet(
        [
            Layer(1, None, 16, stride=2),
            Layer(1, 4, 6),
            Layer(1, 6, 4, stride=2),
            Layer(1, 4, 6),
            Layer(None, 6, 4),
        ],
        **options,
    )


@register_model(in_shape=MNIST)
def pcapsnet2(**options: Any) -> PCapsNet:
    """P-CapsNets#2: 3,888 parameters, the network of the paper's figures."""
    return PCapsNet(
        [
            Layer(1, None, 16, stride=2),
            Layer(1, 4, 8),
            Layer(1, 8, 4, stride=2),
            Layer(1, 4, 8),
            Layer(None, 8, 4),
        ],
        **options,
    )


@register_model(in_shape=MNIST)
def pcapsnet3(**options: Any) -> PCapsNet:
    """P-CapsNets#3: 22,176 parameters."""
    return PCapsNet(
        [
            Layer(1, None, 32, stride=2),
            Layer(2, 8, 8),
            Layer(4, 8, 8, stride=2),
            Layer(2, 8, 8),
            Layer(None, 8, 8),
        ],
        **options,
    )


@register_model(in_shape=CIFAR_CROP)
def pcapsnet4(**options: Any) -> PCapsNet:
    """P-CapsNets#4: 364,896 parameters, for 24x24 crops of CIFAR-10."""
    return PCapsNet(
        [
            Layer(1, None, 32, stride=2),
            Layer(4, 8, 16),
            Layer(8, 16, 8),
            Layer(10, 8, 16, stride=2),
            Layer(None, 16, 16),
        ],
        **options,
    )
