"""Targets that are probabilities: what they are made of, and the loss on them."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from purecaps.models import create_model
from purecaps.models.stack import ModelStack
from purecaps.train import Recipe
from purecaps.train.loss import loss_and_mistakes
from purecaps.train.targets import targets_of
from purecaps.train.teacher import Teacher

RECIPE = Recipe(loss="cross_entropy", scale=7.0)
IMAGES = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([3, 1, 4, 1, 5, 9])
LOADER = SimpleNamespace(seed=0)


def networks(*names):
    torch.manual_seed(0)
    return [create_model(name) for name in names]


def test_without_mixup_and_teacher_the_batch_is_left_alone():
    (model,) = networks("pcapsnet1")
    images, labels = targets_of(model, IMAGES, LABELS, RECIPE, LOADER, 0, None)
    assert images is IMAGES
    assert labels is LABELS


def test_the_teacher_is_asked_about_the_mixed_images():
    model, lenet = networks("pcapsnet1", "lenet")
    recipe = RECIPE.replace(mixup=0.9, teacher_share=0.3, teacher_temperature=2.0)
    images, targets = targets_of(model, IMAGES, LABELS, recipe, LOADER, 5, Teacher(lenet, torch.device("cpu")))
    mixed, labels = targets_of(model, IMAGES, LABELS, recipe.replace(teacher_share=0.0), LOADER, 5, None)
    assert torch.equal(images, mixed)
    assert not torch.equal(mixed, IMAGES)
    torch.testing.assert_close(targets, 0.7 * labels + 0.3 * F.softmax(lenet.eval()(mixed) / 2, dim=1))
    torch.testing.assert_close(targets.sum(dim=1), torch.ones(6))


def test_each_step_and_each_seed_mix_by_shares_of_their_own():
    (model,) = networks("pcapsnet1")
    recipe = RECIPE.replace(mixup=0.5)

    def mixed(seed, step):
        return targets_of(model, IMAGES, LABELS, recipe, SimpleNamespace(seed=seed), step, None)[0]

    assert torch.equal(mixed(0, 5), mixed(0, torch.tensor(5))), "expected a captured step to mix as an eager one"
    assert not torch.equal(mixed(0, 5), mixed(0, 6))
    assert not torch.equal(mixed(0, 5), mixed(1, 5))


def test_no_value_is_read_back_to_the_host():
    # Meta tensors have no values: anything that looked at one would raise, and so would stop a CUDA graph.
    model, lenet = (network.to("meta") for network in networks("lenet", "lenet"))
    teacher = SimpleNamespace(opinion=lambda images, temperature: lenet(images).softmax(dim=-1))
    recipe = RECIPE.replace(mixup=0.5, teacher_share=0.9)
    step = torch.zeros((), dtype=torch.int64, device="meta")
    images, targets = targets_of(model, IMAGES.to("meta"), LABELS.to("meta"), recipe, LOADER, step, teacher)
    loss, wrong = loss_and_mistakes(model, images, targets, recipe, step)
    assert (targets.shape, loss.shape, wrong.shape) == ((6, 10), (), ())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_certain_targets_have_the_loss_of_labels(smoothing):
    (model,) = networks("pcapsnet1")
    recipe = RECIPE.replace(label_smoothing=smoothing)
    soft = loss_and_mistakes(model, IMAGES, F.one_hot(LABELS, 10).float(), recipe)
    hard = loss_and_mistakes(model, IMAGES, LABELS, recipe)
    torch.testing.assert_close(soft[0], hard[0])
    assert soft[1] == hard[1]


def test_the_loss_is_the_cross_entropy_and_the_most_probable_class_is_the_right_one():
    scores = torch.tensor([[0.9, 0.1, 0.2], [0.3, 0.2, 0.6], [0.1, 0.5, 0.1]])
    targets = torch.tensor([[0.6, 0.4, 0.0], [0.5, 0.1, 0.4], [0.1, 0.8, 0.1]])
    loss, wrong = loss_and_mistakes(torch.nn.Identity(), scores, targets, RECIPE)
    torch.testing.assert_close(loss, -(targets * (7 * scores).log_softmax(dim=1)).sum(dim=1).mean())
    assert wrong.item() == 1


def test_a_stack_has_each_networks_loss():
    models = networks("pcapsnet1", "pcapsnet1")
    images = torch.stack([IMAGES, 1 - IMAGES])
    targets = torch.rand(2, 6, 10, generator=torch.Generator().manual_seed(1)).softmax(dim=-1)
    loss, wrong = loss_and_mistakes(ModelStack(models), images, targets, RECIPE)
    for position, model in enumerate(models):
        alone, mistakes = loss_and_mistakes(model, images[position], targets[position], RECIPE)
        torch.testing.assert_close(loss[position], alone)
        assert wrong[position] == mistakes
