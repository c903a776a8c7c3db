"""The loss in one kernel, against purecaps.losses on the scores."""

import pytest
import torch

from interpreted import DEVICE
from purecaps.losses import length_cross_entropy, margin_loss
from purecaps.ops.triton import length_loss as fused

pytestmark = pytest.mark.usefixtures("kernels")

SHAPES = [(1, 5, 10, 1, 1), (3, 37, 7, 2, 3), (1, 300, 10, 1, 1)]


def radii(shape, scale=2.0):
    Z, B, K, H, W = shape
    drawn = torch.rand(Z, B, H, W, K, generator=torch.Generator().manual_seed(0)) * scale
    return drawn.permute(0, 1, 4, 2, 3).to(DEVICE).requires_grad_()


def labels(shape):
    return torch.randint(0, shape[2], shape[:2], generator=torch.Generator().manual_seed(1)).to(DEVICE)


def assert_matches(got, true_loss, r, targets):
    loss, wrong = got
    scores = (1 - torch.exp(-r.double())).mean((3, 4))
    true = torch.stack([true_loss(each, target) for each, target in zip(scores, targets, strict=True)])
    upstream = torch.rand(len(true), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    torch.testing.assert_close(loss.double(), true, rtol=1e-6, atol=1e-6)
    assert torch.equal(wrong, (scores.argmax(2) != targets).sum(1))
    (gradient,) = torch.autograd.grad(loss, r, upstream, retain_graph=True)
    (expected,) = torch.autograd.grad(true, r, upstream.double(), retain_graph=True)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("shape", SHAPES)
def test_margin_loss_matches(shape):
    r, targets = radii(shape), labels(shape)
    got = fused.margin_loss(r, targets, 0.7, 0.2, 0.4)
    assert_matches(got, lambda s, t: margin_loss(s, t, m_pos=0.7, m_neg=0.2, lam=0.4), r, targets)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("shape", SHAPES)
def test_cross_entropy_matches(shape, smoothing):
    r, targets = radii(shape), labels(shape)
    got = fused.cross_entropy(r, targets, 20.0, smoothing)
    assert_matches(got, lambda s, t: length_cross_entropy(s, t, scale=20.0, label_smoothing=smoothing), r, targets)


@pytest.mark.parametrize("networks", [1, 2])
def test_known_ones_are_not_multiplied_by_and_a_multiple_of_them_is(networks):
    shape = (networks, 3, 4, 1, 1)
    r = radii(shape)
    loss, _ = fused.margin_loss(r, labels(shape), 0.7, 0.2, 0.4)
    (true,) = torch.autograd.grad(loss, r, torch.ones_like(loss), retain_graph=True)
    (got,) = torch.autograd.grad(loss, r, fused.ones_of(loss), retain_graph=True)
    (once_more,) = torch.autograd.grad(loss, r, fused.ones_of(loss), retain_graph=True)
    assert torch.equal(got, true)
    assert got.data_ptr() == once_more.data_ptr(), "expected the gradient as it was saved"
    tripled = 3 * loss
    (scaled,) = torch.autograd.grad(tripled, r, fused.ones_of(tripled))
    torch.testing.assert_close(scaled, 3 * true)


def test_capsules_of_no_length_have_finite_gradients():
    r = torch.zeros(1, 3, 4, 1, 1, device=DEVICE, requires_grad=True)
    loss, _ = fused.cross_entropy(r, torch.tensor([[0, 1, 2]], device=DEVICE), 10.0, 0.0)
    (gradient,) = torch.autograd.grad(loss, r, torch.ones_like(loss))
    assert loss.item() == pytest.approx(1.3862944)  # four classes, all alike
    assert gradient.isfinite().all()
    assert gradient.abs().max() > 0


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the NumPy of the interpreter says that there is NaN
@pytest.mark.parametrize("length", [float("nan"), float("inf")])
def test_a_network_that_has_diverged_has_no_finite_loss(length):
    r = torch.full((1, 3, 4, 1, 1), length, device=DEVICE)
    targets = torch.zeros(1, 3, dtype=torch.int64, device=DEVICE)
    for loss, _ in (fused.margin_loss(r, targets, 0.5, 0.1, 0.5), fused.cross_entropy(r, targets, 10.0, 0.0)):
        assert loss.isnan().all()


def test_the_operator_keeps_its_contract_with_torch():
    shape = (2, 5, 3, 2, 1)
    r, targets = radii(shape), labels(shape)
    torch.library.opcheck(fused.length_loss, (r, targets, True, [0.5, 0.1, 0.5]))
