"""The losses, against hand-counted numbers."""

import math

import pytest
import torch

from purecaps.errors import ConfigError
from purecaps.losses import length_cross_entropy, margin_loss, spread_loss


def test_margin_loss_of_a_hand_counted_batch():
    scores = torch.tensor([[0.3, 0.2, 0.05], [0.9, 0.0, 0.6]])
    target = torch.tensor([0, 2])
    first = (0.5 - 0.3) ** 2 + 0.5 * (0.2 - 0.1) ** 2
    second = 0.5 * (0.9 - 0.1) ** 2
    assert math.isclose(margin_loss(scores, target).item(), (first + second) / 2, rel_tol=1e-6)


def test_margin_loss_takes_the_papers_cifar_margins():
    scores, target = torch.tensor([[0.55, 0.3]]), torch.tensor([0])
    expected = (0.6 - 0.55) ** 2 + 0.5 * (0.3 - 0.1) ** 2
    assert math.isclose(margin_loss(scores, target, m_pos=0.6, m_neg=0.1, lam=0.5).item(), expected, rel_tol=1e-5)


def test_margin_loss_is_zero_once_every_margin_is_kept():
    assert margin_loss(torch.tensor([[0.5, 0.1, 0.0]]), torch.tensor([0])).item() == 0


def test_spread_loss_of_a_hand_counted_batch():
    scores = torch.tensor([[0.7, 0.5, 0.05], [0.9, 0.0, 0.6]])
    target = torch.tensor([0, 2])
    first = (0.4 - (0.7 - 0.5)) ** 2
    second = (0.4 - (0.6 - 0.9)) ** 2
    assert math.isclose(spread_loss(scores, target, margin=0.4).item(), (first + second) / 2, rel_tol=1e-6)
    on_device = spread_loss(scores, target, margin=torch.tensor(0.4))
    assert math.isclose(on_device.item(), (first + second) / 2, rel_tol=1e-6)


def test_spread_loss_is_zero_once_the_true_class_is_far_enough_above():
    assert spread_loss(torch.tensor([[0.95, 0.05, 0.0]]), torch.tensor([0]), margin=0.9).item() == 0


def test_spread_loss_pulls_the_true_class_up_and_the_wrong_ones_down():
    scores = torch.tensor([[0.3, 0.5, 0.4]], requires_grad=True)
    spread_loss(scores, torch.tensor([1]), margin=0.2).backward()
    expected = torch.tensor([[0.0, -2 * 0.1, 2 * 0.1]])
    torch.testing.assert_close(scores.grad, expected)


def test_spread_loss_of_bfloat16_is_summed_in_float32():
    scores, target = torch.rand(4, 5).bfloat16(), torch.tensor([0, 4, 2, 2])
    expected = spread_loss(scores.double(), target, margin=0.6)
    got = spread_loss(scores, target, margin=0.6)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=0)


def test_cross_entropy_scales_lengths_before_the_softmax():
    scores, target = torch.tensor([[0.9, 0.1]]), torch.tensor([0])
    expected = math.log(1 + math.exp(-10 * 0.8))
    assert math.isclose(length_cross_entropy(scores, target, scale=10).item(), expected, rel_tol=1e-4)


def test_cross_entropy_takes_probabilities_of_all_classes_too():
    scores, target = torch.tensor([[0.9, 0.1]]), torch.tensor([[0.75, 0.25]])
    expected = math.log(1 + math.exp(-10 * 0.8)) + 0.25 * 10 * 0.8
    assert math.isclose(length_cross_entropy(scores, target, scale=10).item(), expected, rel_tol=1e-4)
    with pytest.raises(ConfigError, match=r"target: .* or probabilities \[1, 2\], got torch.float32 \[1, 3\]"):
        length_cross_entropy(scores, torch.zeros(1, 3))


@pytest.mark.parametrize("loss", [margin_loss, spread_loss, length_cross_entropy])
def test_gradients_are_exact(loss):
    scores = torch.rand(4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(lambda scores: loss(scores, torch.tensor([0, 4, 2, 2])), (scores,))


@pytest.mark.parametrize("loss", [margin_loss, spread_loss, length_cross_entropy])
@pytest.mark.parametrize(
    ("scores", "target", "message"),
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.int64), r"scores: expected \[B, K\], got \[4\]"),
        (
            torch.zeros(4, 3),
            torch.zeros(3, dtype=torch.int64),
            r"target: expected int64 .*\[4\].* got torch.int64 \[3\]",
        ),
        (torch.zeros(4, 3), torch.zeros(4), r"target: expected int64 .* got torch.float32 \[4\]"),
        (torch.zeros(4, 3, dtype=torch.int64), torch.zeros(4), r"scores: expected a floating-point .* got torch.int64"),
    ],
)
def test_wrong_arguments_are_refused_by_name(loss, scores, target, message):
    with pytest.raises(ConfigError, match=message):
        loss(scores, target)
