"""Adversarial training: what the network is shown, and what that buys."""

import pytest
import torch

from purecaps.data.random import key
from purecaps.errors import ConfigError
from purecaps.evaluate.attacks import by_pgd, measure
from purecaps.models import create_model
from purecaps.train import Recipe, RunConfig, train
from purecaps.train.adversary import harden

RECIPE = Recipe(
    steps=8,
    batch_size=16,
    lr=0.01,
    loss="cross_entropy",
    init="caffe",
    schedule="cosine",
    adversary_eps=0.1,
    log_every=1,
    checkpoint_every=4,
)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("scale", [1 / 255, 1 / 256, 1.0])
def test_batches_are_moved_up_the_loss_within_eps_and_the_range_of_pixels(digits, steps, scale):
    model = create_model("pcapsnet2", pretrained=True)
    unit = 255 * scale
    images, labels = digits.test.images * scale, digits.test.labels
    recipe = RECIPE.replace(adversary_steps=steps, pixel_scale=scale)

    def loss(at):
        return torch.nn.functional.cross_entropy(10 * model(at / unit), labels)

    moved = harden(images, recipe, key(3), loss)
    assert not moved.requires_grad
    assert ((moved - images).abs() <= 0.1 * unit * (1 + 1e-5)).all()
    assert ((moved >= 0) & (moved <= unit)).all()
    assert loss(moved) > 5 * loss(images)
    assert torch.equal(moved, harden(images, recipe, key(3), loss))
    assert not torch.equal(moved, harden(images, recipe, key(4), loss))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_run_goes_on_exactly(digits, tmp_path):
    config = RunConfig("pcapsnet1", "digits", "x", RECIPE)
    whole = train(config, digits, tmp_path)
    (tmp_path / "checkpoints" / "step-00000008.safetensors").unlink()
    again = train(config, digits, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.model.parameters(), again.model.parameters(), strict=True))


def test_each_seed_takes_the_steps_it_takes_alone(digits, tmp_path):
    together = train(RunConfig("pcapsnet1", "digits", "x", RECIPE, seed=5, seeds=2), digits, tmp_path / "all")
    alone = train(RunConfig("pcapsnet1", "digits", "x", RECIPE, seed=6), digits, tmp_path / "one")
    plain = train(
        RunConfig("pcapsnet1", "digits", "x", RECIPE.replace(adversary_eps=0.0), seed=6), digits, tmp_path / "p"
    )
    losses = [
        [row[name] for row in run.history[:4]] for run, name in ((together, "loss/6"), (alone, "loss"), (plain, "loss"))
    ]
    # A pixel whose gradient is next to zero may go either way by rounding.
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert losses[1] != pytest.approx(losses[2], rel=1e-3)


def test_it_buys_accuracy_under_attack(digits, tmp_path):
    images, labels = digits.train.images, digits.train.labels
    correct = {}
    for eps in (0.0, 0.1):
        recipe = RECIPE.replace(steps=100, batch_size=32, adversary_eps=eps, log_every=50)
        model = train(RunConfig("pcapsnet2", "digits", "x", recipe), digits, tmp_path / str(eps)).model
        correct[eps] = measure(model, images, labels, by_pgd(model, [0.1], steps=5)).points[0].correct
    assert correct[0.1] > correct[0.0] + 40, f"of 160 training images: {correct}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"adversary_eps": -0.1}, r"adversary_eps: expected a number in \[0, 1\), got -0.1"),
        ({"adversary_eps": 8.0}, r"adversary_eps: expected a number in \[0, 1\), got 8.0"),
        ({"adversary_steps": 0}, "adversary_steps: expected an int >= 1, got 0"),
        ({"preprocess": "gcn_zca"}, "adversary_eps: expected 0 with preprocess gcn_zca.* got 0.1"),
    ],
)
def test_a_senseless_adversary_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        RECIPE.replace(**change)


@pytest.mark.gpu
def test_a_graph_takes_the_same_steps_as_eager_execution(digits, tmp_path):
    config = RunConfig("pcapsnet1", "digits", "x", RECIPE.replace(adversary_steps=2))
    eager, graph = (
        [row["loss"] for row in train(config, digits, tmp_path / str(graph), device="cuda", graph=graph).history]
        for graph in (False, True)
    )
    assert graph[:4] == pytest.approx(eager[:4], rel=1e-2)
