"""Mixup: what is mixed with what, by how much, and runs with it."""

import pytest
import torch

from purecaps.data.random import key
from purecaps.errors import ConfigError
from purecaps.train import Recipe, RunConfig, train
from purecaps.train.mixup import mixed

RECIPE = Recipe(
    steps=8,
    batch_size=16,
    lr=0.01,
    loss="cross_entropy",
    init="caffe",
    augment=("shift:2",),
    mixup=0.5,
    log_every=1,
    checkpoint_every=4,
)
IMAGES = torch.rand(123, 3, 5, 7, generator=torch.Generator().manual_seed(0))
TARGETS = torch.eye(123)  # a class an image: a target says how much of whom it is


def test_images_and_targets_are_the_same_mixture_of_neighbours():
    images, targets = mixed(IMAGES, TARGETS, 0.5, key(3))
    torch.testing.assert_close(images, torch.einsum("bk,kchw->bchw", targets, IMAGES))
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(123))
    assert (targets.count_nonzero(dim=1) == 2).all()
    shares = targets.diagonal(offset=-1)  # what image b has of image b - 1
    torch.testing.assert_close(targets.diagonal()[1:], 1 - shares)


@pytest.mark.parametrize("most", [0.1, 0.5, 0.9])
def test_shares_are_uniform_up_to_the_most(most):
    shares = 1 - mixed(IMAGES, TARGETS, most, key(3))[1].diagonal()
    assert (shares.min() >= 0, shares.max() < most) == (True, True)
    assert len(shares.unique()) > 120
    assert shares.mean().item() == pytest.approx(most / 2, rel=0.15)
    assert not torch.equal(shares, 1 - mixed(IMAGES, TARGETS, most, key(4))[1].diagonal())


def test_each_network_of_a_stack_has_the_mixture_it_has_alone():
    streams = torch.stack([key(5), key(6)])
    images, targets = mixed(torch.stack([IMAGES, 1 - IMAGES]), torch.stack([TARGETS, TARGETS]), 0.5, streams)
    for position, (own, stream) in enumerate(((IMAGES, key(5)), (1 - IMAGES, key(6)))):
        alone = mixed(own, TARGETS, 0.5, stream)
        assert torch.equal(images[position], alone[0])
        assert torch.equal(targets[position], alone[1])


def test_a_run_goes_on_exactly(digits, tmp_path):
    config = RunConfig("pcapsnet1", "digits", "x", RECIPE)
    whole = train(config, digits, tmp_path)
    (tmp_path / "checkpoints" / "step-00000008.safetensors").unlink()
    again = train(config, digits, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True))


def test_each_seed_takes_the_steps_it_takes_alone(digits, tmp_path):
    together = train(RunConfig("pcapsnet1", "digits", "x", RECIPE, seed=5, seeds=2), digits, tmp_path / "all")
    alone = train(RunConfig("pcapsnet1", "digits", "x", RECIPE, seed=6), digits, tmp_path / "one")
    plain = train(RunConfig("pcapsnet1", "digits", "x", RECIPE.replace(mixup=0.0), seed=6), digits, tmp_path / "p")
    mine, expected, unmixed = (
        [row[name] for row in run.history] for run, name in ((together, "loss/6"), (alone, "loss"), (plain, "loss"))
    )
    assert mine == pytest.approx(expected, rel=1e-3)
    assert expected != pytest.approx(unmixed, rel=1e-2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mixup": 1.0}, r"mixup: expected a number in \[0, 1\), got 1.0"),
        ({"mixup": -0.1}, r"mixup: expected a number in \[0, 1\), got -0.1"),
        ({"loss": "margin"}, "mixup: expected 0 with loss margin, whose targets are single classes, got 0.5"),
        ({"loss": "spread"}, "mixup: expected 0 with loss spread, whose targets are single classes, got 0.5"),
        ({"adversary_eps": 0.1}, "adversary_eps: expected 0 with mixup 0.5, got 0.1"),
    ],
)
def test_a_senseless_mixup_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        RECIPE.replace(**change)


@pytest.mark.usefixtures("tiny_networks")
def test_a_network_that_is_shown_the_labels_is_refused_before_the_run(digits, tmp_path):
    recipe = RECIPE.replace(init=None)
    with pytest.raises(ConfigError, match=r"mixup: expected 0 for Reconstructing, which is shown the labels.* got 0.5"):
        train(RunConfig("reconstructing", "digits", "x", recipe), digits, tmp_path)
    assert not list(tmp_path.iterdir())
