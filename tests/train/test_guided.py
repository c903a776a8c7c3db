"""Networks that are shown the labels in training: what is summed, what counts mistakes, and several of them at once."""

import pytest
import torch
from tiny import Reconstructing

from purecaps.errors import ConfigError
from purecaps.losses import margin_loss
from purecaps.models.guided import Guided, eval_batch, stack_obstacle
from purecaps.models.stack import ModelStack
from purecaps.train import Recipe, RunConfig, Trainer, train
from purecaps.train.loss import loss_and_mistakes

RECIPE = Recipe(steps=12, batch_size=16, lr=0.01, init=None, m_pos=0.9, log_every=1, checkpoint_every=6)
IMAGES = torch.rand(6, 1, 5, 7, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])


def make(seed=0):
    torch.manual_seed(seed)
    return Reconstructing(in_shape=(1, 5, 7), num_classes=3)


def test_the_loss_is_taken_of_every_set_of_scores_and_the_penalty_is_added():
    network = make()
    (first, second), penalty = network.guided(IMAGES, LABELS)
    expected = sum(margin_loss(scores, LABELS, m_pos=0.9) for scores in (first, second)) + penalty
    loss, _ = loss_and_mistakes(network, IMAGES, LABELS, RECIPE)
    torch.testing.assert_close(loss, expected)
    assert penalty.item() > 0.01


def test_the_first_set_of_scores_counts_the_mistakes():
    class Fixed(torch.nn.Module):
        def guided(self, images, labels):
            right = torch.nn.functional.one_hot(labels, 3).float()
            right[0] = right[0].roll(1)
            return Guided((right, torch.zeros(6, 3)), torch.zeros(()))

    assert loss_and_mistakes(Fixed(), IMAGES, LABELS, RECIPE)[1].item() == 1


@pytest.mark.parametrize("loss", ["margin", "spread", "cross_entropy"])
def test_no_value_is_read_back_to_the_host(loss):
    # Meta tensors have no values: anything that looked at one would raise, and so would stop a CUDA graph.
    step = torch.zeros((), dtype=torch.int64, device="meta")
    recipe = RECIPE.replace(loss=loss)
    found, wrong = loss_and_mistakes(make().to("meta"), IMAGES.to("meta"), LABELS.to("meta"), recipe, step)
    found.backward()
    assert (found.shape, wrong.shape) == ((), ())


def test_gradients_reach_the_decoder_and_every_set_of_scores():
    network = make()
    loss_and_mistakes(network, IMAGES, LABELS, RECIPE)[0].backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in network.parameters())


@pytest.mark.parametrize("loss", ["margin", "spread", "cross_entropy"])
def test_a_stack_has_each_networks_loss_and_gradients(loss):
    networks, recipe = [make(0), make(1)], RECIPE.replace(loss=loss)
    stack = ModelStack(networks)
    images, labels = torch.stack([IMAGES, 1 - IMAGES]), torch.stack([LABELS, 2 - LABELS])
    together, wrong = loss_and_mistakes(stack, images, labels, recipe, 3)
    together.sum().backward()
    gradients = [stack.weights[name.replace(".", "/")].grad for name, _ in networks[0].named_parameters()]
    for each, network in enumerate(networks):
        alone, mistakes = loss_and_mistakes(network, images[each], labels[each], recipe, 3)
        torch.testing.assert_close(together[each], alone)
        assert wrong[each] == mistakes
        alone.backward()
        for stacked, parameter in zip(gradients, network.parameters(), strict=True):
            torch.testing.assert_close(stacked[each], parameter.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.usefixtures("tiny_networks")
def test_seeds_of_a_guided_network_train_side_by_side(digits, tmp_path):
    config = RunConfig("reconstructing", "digits", "x", RECIPE, seed=4, seeds=2)
    together = Trainer(config, digits, tmp_path / "all").run()
    assert together.side_by_side == 2
    for position, seed in enumerate((4, 5)):
        alone = train(RunConfig("reconstructing", "digits", "x", RECIPE, seed=seed), digits, tmp_path / str(seed))
        expected = [row["loss"] for row in alone.history]
        assert [row[f"loss/{seed}"] for row in together.history] == pytest.approx(expected, rel=1e-4)
        images = digits.test.images / 255
        torch.testing.assert_close(together.models[position](images), alone.model(images), rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("tiny_networks")
def test_the_penalty_is_learned_too(digits, tmp_path):
    recipe = RECIPE.replace(steps=150, batch_size=32, log_every=10, precision="bf16")
    network = train(RunConfig("reconstructing", "digits", "x", recipe), digits, tmp_path).model
    images, labels = digits.train.images / 255, digits.train.labels
    torch.manual_seed(0)
    untrained = Reconstructing(in_shape=(1, 28, 28), num_classes=10)
    with torch.no_grad():
        assert network.guided(images, labels).penalty < 0.5 * untrained.guided(images, labels).penalty


def test_a_network_can_decline_to_be_stacked():
    network = make()
    assert stack_obstacle(network) is None
    network.stackable = False
    assert stack_obstacle(network) == "Reconstructing, which fills a device alone"
    with pytest.raises(ConfigError, match="models: expected networks that can be stacked, got Reconstructing, which"):
        ModelStack([network])


def test_a_network_says_how_many_images_it_is_evaluated_on_at_once():
    network = make()
    assert eval_batch(network) == 1000
    network.eval_batch = 64
    assert eval_batch(network) == 64
