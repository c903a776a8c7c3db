"""One training step, against one written out by hand."""

import math

import pytest
import torch

from purecaps.losses import length_cross_entropy, margin_loss
from purecaps.models import create_model
from purecaps.train import Recipe
from purecaps.train.checkpoint import State
from purecaps.train.loss import loss_of
from purecaps.train.optimiser import clip_gradients, make_optimiser
from purecaps.train.step import average, update

IMAGES = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(6)


def test_a_step_is_adam_with_decoupled_weight_decay():
    recipe = Recipe(
        lr=0.01, beta1=0.8, beta2=0.95, adam_eps=1e-4, weight_decay=0.3, loss="margin", m_pos=0.7, m_neg=0.2, lam=0.4
    )
    model = create_model("pcapsnet1")
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = margin_loss(model(IMAGES), LABELS, m_pos=0.7, m_neg=0.2, lam=0.4)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    got, wrong = update(State(model, make_optimiser(model, recipe), {}), IMAGES, LABELS, recipe)
    assert math.isclose(got.item(), loss.item(), rel_tol=1e-6)
    assert 0 <= int(wrong) <= 6
    for old, gradient, new in zip(before, gradients, model.parameters(), strict=True):
        # After one step both averages, corrected for their start, are the gradient itself.
        expected = old * (1 - 0.01 * 0.3) - 0.01 * gradient / (gradient.abs() + 1e-4)
        torch.testing.assert_close(new.detach(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            {"loss": "cross_entropy", "scale": 7.0, "label_smoothing": 0.2},
            lambda s: length_cross_entropy(s, LABELS, scale=7.0, label_smoothing=0.2),
        ),
        (
            {"loss": "margin", "m_pos": 0.8, "m_neg": 0.3, "lam": 0.9},
            lambda s: margin_loss(s, LABELS, m_pos=0.8, m_neg=0.3, lam=0.9),
        ),
    ],
)
def test_the_loss_has_the_recipes_numbers(options, expected):
    scores = torch.rand(6, 10)
    torch.testing.assert_close(loss_of(Recipe(**options), scores, LABELS), expected(scores))


def test_clipping_scales_the_whole_gradient():
    model = create_model("pcapsnet1")
    model(IMAGES).sum().backward()
    before = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    clip_gradients(model, 0.5, stacked=False)
    after = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(after, before * 0.5 / before.norm(), rtol=1e-4, atol=1e-7)


def test_averaging_moves_a_share_of_the_way():
    model = create_model("pcapsnet1")
    state = State(
        model, make_optimiser(model, Recipe()), {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    )
    average(state, 0.75)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(state.averaged[name], 0.25 * parameter.detach())
