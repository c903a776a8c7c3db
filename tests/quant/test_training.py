"""Quantisation-aware training: the rounding that is trained with is the rounding that comes."""

from dataclasses import replace

import pytest
import torch

from purecaps.data import Split
from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models import Layer
from purecaps.quant import quantisation_aware, quantise
from purecaps.quant.calibrate import observe
from purecaps.quant.training import RoundedPCapsNet, rounded
from quantised_cases import CASES, own, raw_images


def test_rounding_has_the_gradient_of_a_clamp():
    x = torch.tensor([-0.5, -0.1, 0.12, 0.4, 3.0], requires_grad=True)
    y = rounded(x, 0.01, 20)
    torch.testing.assert_close(y.detach(), torch.tensor([-0.2, -0.1, 0.12, 0.4, 2.35]))
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 1, 1, 0]


@pytest.mark.parametrize("trained", CASES.values(), ids=CASES)
def test_the_rounded_network_is_closer_to_the_integers_than_the_network_in_float(trained):
    images = raw_images(trained, 60)
    network = quantise(trained, images)
    expected = network.length_of(network.scores(images))
    rounding = RoundedPCapsNet(trained.model, observe(trained, images), trained.info.pixel_scale)
    with torch.inference_mode():
        off = (rounding(trained.inputs(images)) - expected).square().mean()
        unrounded = (trained.scores(images) - expected).square().mean()
    assert float(off) < 0.7 * float(unrounded)


def test_every_weight_is_trained(digits):
    trained = TrainedModel.from_package("pcapsnet1")
    images = digits.train.images[:20]
    rounding = RoundedPCapsNet(trained.model, observe(trained, images), trained.info.pixel_scale)
    rounding(trained.inputs(images)).sum().backward()
    for parameter in rounding.parameters():
        assert bool(parameter.grad.isfinite().all())
        assert float(parameter.grad.abs().max()) > 0


def small_reader(digits):
    trained = own([Layer(2, None, 4, stride=4, kernel=5), Layer(None, 4, 4, kernel=6)], (1, 28, 28), 10, init="caffe")
    return replace(trained, info=replace(trained.info, class_names=digits.class_names, augment=("shift:1",)))


def test_training_with_rounding_teaches_the_integers(digits):
    trained = small_reader(digits)
    before = {name: tensor.clone() for name, tensor in trained.model.state_dict().items()}
    calibration = digits.train.images

    def mistakes(network) -> int:
        return int((quantise(network, calibration).scores(calibration).argmax(dim=1) != digits.train.labels).sum())

    steps = []

    class Watcher:
        def start(self, total, done):
            steps.append((total, done))

        def advance(self, step):
            steps.append(step)

        def row(self, row):
            steps.append(row["error"])

        def stop(self):
            steps.append("stop")

    aware = quantisation_aware(trained, digits, calibration, steps=60, lr=0.01, watcher=Watcher())
    assert mistakes(aware) < 0.5 * mistakes(trained)
    assert all(torch.equal(tensor, before[name]) for name, tensor in trained.model.state_dict().items())
    assert steps[:2] == [(60, 0), 1]
    assert steps[-1] == "stop"


def test_the_same_seed_gives_the_same_weights(digits):
    trained = small_reader(digits)
    runs = [
        quantisation_aware(trained, digits, digits.train.images, steps=3, lr=0.01, seed=seed).model
        for seed in (0, 0, 1)
    ]
    first, again, other = (run.capsule_blocks()[0].conv.weight for run in runs)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_other_images_than_it_was_trained_on_are_refused(digits):
    trained = TrainedModel.from_package("pcapsnet1")
    smaller = replace(
        digits,
        train=Split(digits.train.images[:, :, 4:], digits.train.labels),
        test=Split(digits.test.images[:, :, 4:], digits.test.labels),
    )
    with pytest.raises(ConfigError, match=r"expected images \(1, 28, 28\) of 10 classes, .* got \(1, 24, 28\) of 10"):
        quantisation_aware(trained, smaller, digits.train.images)
