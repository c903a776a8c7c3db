"""A training step of every network that tables compare can be a CUDA graph: it asks nothing of the device's values."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from purecaps.data.augment import Crop
from purecaps.data.transforms import parse
from purecaps.experiments.paper.system import SHAPES
from purecaps.experiments.paper.systems import SYSTEMS
from purecaps.models import create_model
from purecaps.train.loss import loss_and_mistakes


class Leftovers(TorchDispatchMode):
    """Operations whose results lie on another device than "meta".

    Memory without a value is nothing to copy to a device: torch 2.11 makes some where it computes again.
    """

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else [made]:
            if function is torch.ops.aten.empty.memory_format:
                continue
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self.found.append(str(function))
        return made


def watched(network, images, labels, recipe):
    with Leftovers() as leftovers:
        loss_and_mistakes(network, images, labels, recipe, labels.new_zeros(()))[0].backward()
    return leftovers.found


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_a_step_reads_no_value_and_makes_nothing_on_the_host(system):
    # Meta tensors have no values: whatever looked at one would raise.
    crops = [each for each in parse(system.whole.augment).transforms if isinstance(each, Crop)]
    channels, *size = SHAPES[system.data]
    shape = (channels, crops[-1].size, crops[-1].size) if crops else (channels, *size)
    with torch.device("meta"):
        network = create_model(system.model, in_shape=shape).train()
        images, labels = torch.rand(system.whole.batch_size, *shape), torch.zeros(system.whole.batch_size).long()
    assert watched(network, images, labels, system.whole) == []
    assert all(parameter.grad is not None for parameter in network.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(
    ("spoilt", "error", "message"),
    [
        (lambda scores: scores[scores > 0].sum(), NotImplementedError, "torch.nonzero"),
        (lambda scores: scores * scores.max().item(), RuntimeError, "item.* cannot be called on meta tensors"),
    ],
    ids=["chooses by them", "reads one"],
)
def test_a_network_that_looks_at_its_scores_is_found_out(spoilt, error, message):
    class Looking(torch.nn.Linear):
        def forward(self, images):
            return super().forward(images.flatten(1)) + spoilt(super().forward(images.flatten(1)))

    with torch.device("meta"):
        network, images, labels = Looking(4, 10), torch.rand(3, 1, 2, 2), torch.zeros(3).long()
    with pytest.raises(error, match=message):
        watched(network, images, labels, SYSTEMS[0].whole)


def test_a_number_made_on_the_host_is_found_out():
    class Made(torch.nn.Linear):
        def forward(self, images):
            return super().forward(images.flatten(1)) * torch.tensor(2.0)

    network, images = Made(4, 10, device="meta"), torch.rand(3, 1, 2, 2, device="meta")
    assert watched(network, images, torch.zeros(3, device="meta").long(), SYSTEMS[0].whole) != []
