"""pcapsnet2 and pcapsnet3 with capsules of other shapes: exactly as many parameters, the same depth, kernels and maps.

The paper folds a capsule's numbers into a matrix or a rank-3 tensor and says that for the same number of parameters
folded capsules might represent more. These networks put that to the test. Numbers are single ("scalar": what the paper
says a CNN is), in a vector of m = 1 row, in matrices of 4 rows (the paper's networks themselves) and of 16, in g = 2
and g = 4 matrices of 4 rows each. At each position there are as many capsules as in the paper's network; of those with
exactly as many parameters, this is one with the most even sizes n and p, or the most even numbers of scalars.

Rows and matrices share no numbers but a capsule's length, in these networks as in the paper's. With m rows that share a
kernel, an equal number of parameters is not an equal amount of work: `packings` counts both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from purecaps.errors import unknown_name
from purecaps.models.pcapsnet import Layer, PCapsNet
from purecaps.models.registry import build_model, register_model

MNIST = (1, 28, 28)
STRIDES = (2, 1, 2, 1, 1)


def _layers(caps: tuple[int, int, int, int], first: int, *shapes: tuple[int, int], g: int = 1) -> tuple[Layer, ...]:
    """Five layers: how many capsules each of the first four makes, the first's p, and the (n, p) of the others."""
    outs = (*caps[1:], None)
    rest = zip(outs, shapes, STRIDES[1:], strict=True)
    return (
        Layer(caps[0], None, first, stride=STRIDES[0]),
        *(Layer(out, n, p, stride=stride, g=g) for out, (n, p), stride in rest),
    )


ONE, SEVERAL = (1, 1, 1, 1), (1, 2, 4, 2)
SCALARS = ((1, 1),) * 4
PACKINGS: dict[str, dict[str, tuple[Layer, ...]]] = {
    "pcapsnet2": {
        "scalar": _layers((12, 10, 10, 10), 1, *SCALARS),
        "vector": _layers(ONE, 6, (6, 7), (7, 7), (7, 5), (5, 6)),
        "rows16": _layers(ONE, 96, (6, 6), (6, 6), (6, 4), (4, 6)),
        "g2": _layers(ONE, 24, (3, 4), (4, 4), (4, 4), (4, 4), g=2),
        "g4": _layers(ONE, 48, (3, 4), (4, 4), (4, 2), (2, 3), g=4),
    },
    "pcapsnet3": {
        "scalar": _layers((27, 28, 27, 25), 1, *SCALARS),
        "vector": _layers(SEVERAL, 8, (8, 10), (10, 8), (8, 9), (9, 6)),
        "rows16": _layers(SEVERAL, 144, (9, 8), (8, 7), (7, 8), (8, 8)),
        "g2": _layers(SEVERAL, 40, (5, 6), (6, 7), (7, 6), (6, 4), g=2),
        "g4": _layers(SEVERAL, 64, (4, 5), (5, 5), (5, 3), (3, 4), g=4),
    },
}
WORDS = {
    "scalar": "capsules of 1x1x1",
    "vector": "capsules of 1x1xn",
    "matrix": "capsules of 1x4xn",
    "rows16": "capsules of 1x16xn",
    "g2": "capsules of 2x4xn",
    "g4": "capsules of 4x4xn",
}


@dataclass(frozen=True)
class Packing:
    """A network with one way to pack capsules, and what it costs.

    Args:
        model: its name.
        packing: "scalar", "vector", "matrix" for the paper's own, "rows16", "g2" or "g4".
        capsules: their shape, in words.
        parameters: how many.
        multiply_adds: multiplications of one image.
    """

    model: str
    packing: str
    capsules: str
    parameters: int
    multiply_adds: int


def packings(base: str) -> list[Packing]:
    """The networks of as many parameters as `base`, "pcapsnet2" or "pcapsnet3", which is one of them."""
    if base not in PACKINGS:
        raise unknown_name("network with other packings", base, PACKINGS)
    found = []
    for packing, capsules in WORDS.items():
        name = base if packing == "matrix" else f"{base}_{packing}"
        with torch.device("meta"):
            network = build_model(name, None, 10, {})
        assert isinstance(network, PCapsNet)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        found.append(Packing(name, packing, capsules, parameters, network.multiply_adds()))
    return found


def _register(base: str, packing: str, layers: tuple[Layer, ...]) -> None:
    def build(**options: Any) -> PCapsNet:
        return PCapsNet(layers, **options)

    build.__name__ = f"{base}_{packing}"
    build.__doc__ = f"{base} with {WORDS[packing]}: as many parameters, for a comparison."
    register_model(in_shape=MNIST, comparison=True)(build)


for _base, _networks in PACKINGS.items():
    for _packing, _network in _networks.items():
        _register(_base, _packing, _network)
