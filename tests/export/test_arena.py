"""The plan of memory: played through with every number labelled, nothing is overwritten before it was read."""

import itertools

import pytest

from purecaps.export.arena import arena_size
from purecaps.models import Layer, create_model, list_models
from purecaps.models.sizes import LayerSizes, layer_sizes
from quantised_cases import CASES, own


def play(layers: list[LayerSizes], size: int, *, last_is_kept: bool) -> bool:
    """Whether a network can run in a block of `size` numbers; each holds which number of which map it is."""
    memory: list[tuple[int, int] | None] = [None] * size
    start = size - layers[0].in_numbers
    if start < 0:
        return False
    for index in range(layers[0].in_numbers):
        memory[start + index] = (0, index)
    for number, layer in enumerate(layers):
        if number == len(layers) - 1 and not last_is_kept:
            return all(memory[start + index] == (number, index) for index in range(layer.in_numbers))
        backwards = number % 2 == 1
        out = size - layer.out_numbers if backwards else 0
        if out < 0:
            return False
        capsules = list(enumerate(itertools.product(*map(range, (*layer.out_size, layer.O)))))
        for at, (y, x, _) in reversed(capsules) if backwards else capsules:
            for i, j in itertools.product(range(layer.kernel[0]), range(layer.kernel[1])):
                row, column = y * layer.stride[0] + i - layer.padding[0], x * layer.stride[1] + j - layer.padding[1]
                if 0 <= row < layer.in_size[0] and 0 <= column < layer.in_size[1]:
                    first = (row * layer.in_size[1] + column) * layer.in_capsules
                    for index in range(first, first + layer.in_capsules):
                        if memory[start + index] != (number, index):
                            return False
            for index in range(at * layer.capsule, (at + 1) * layer.capsule):
                memory[out + index] = (number + 1, index)
        start = out
    return all(memory[start + index] == (len(layers), index) for index in range(layers[-1].out_numbers))


NETWORKS = {
    **{name: trained.model for name, trained in CASES.items()},
    "growing, then shrinking": own([Layer(1, None, 9), Layer(3, 3, 5, padding=2), Layer(1, 5, 1), Layer(None, 3, 2)], (1, 9, 8)).model,
    "pcapsnet1": create_model("pcapsnet1"),
}  # fmt: skip


@pytest.mark.parametrize("last_is_kept", [True, False])
@pytest.mark.parametrize("model", NETWORKS.values(), ids=NETWORKS)
def test_the_block_is_large_enough_and_no_larger(model, last_is_kept):
    layers = layer_sizes(model)
    size = arena_size(layers, last_is_kept=last_is_kept)
    assert play(layers, size, last_is_kept=last_is_kept)
    assert not play(layers, size - 1, last_is_kept=last_is_kept)


@pytest.mark.parametrize("name", list_models("pcapsnet?"))
def test_maps_that_overlap_take_less_than_two_neighbours_side_by_side(name):
    layers = layer_sizes(create_model(name))
    assert arena_size(layers, last_is_kept=True) < max(layer.in_numbers + layer.out_numbers for layer in layers)
