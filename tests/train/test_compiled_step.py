"""Steps with network and loss through torch.compile."""

import pytest
import torch
from tiny import Reconstructing

from purecaps.data.loader import DeviceLoader
from purecaps.train import Recipe
from purecaps.train.checkpoint import State
from purecaps.train.optimiser import make_optimiser
from purecaps.train.step import make_stepper

RECIPE = Recipe(steps=4, batch_size=5, lr=0.01, loss="spread", log_every=4)


def losses(split, *, compile):
    torch.manual_seed(0)
    network = Reconstructing(in_shape=(1, 28, 28), num_classes=10)
    state = State(network, make_optimiser(network, RECIPE), {})
    loader = DeviceLoader(split, RECIPE.batch_size, seed=0)
    return make_stepper(state, loader, RECIPE, 0, graph=None, compile=compile)(0, 4, lambda step: True)


@pytest.mark.slow
def test_compiled_steps_are_those_of_the_eager_run_and_compiled_once(digits):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled, compiled_mistakes = losses(digits.train, compile=True)
    # The spread loss's margin changes with every step: a step number in the code would make it anew each time.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    eager, eager_mistakes = losses(digits.train, compile=False)
    torch.testing.assert_close(compiled, eager, rtol=1e-5, atol=1e-6)
    assert torch.equal(compiled_mistakes, eager_mistakes)
    assert len(set(eager.tolist())) == 4
