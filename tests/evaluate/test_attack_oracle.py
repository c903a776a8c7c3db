"""FGSM and PGD against the Adversarial Robustness Toolbox, which knows nothing of this package."""

import tempfile

import numpy as np
import pytest
import torch
from torch import nn

from purecaps import create_model
from purecaps.evaluate.attacks import AttackLoss, default_loss, fgsm, pgd
from purecaps.losses import margin_loss

with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
    # It leaves its settings at home when it is imported, and breaks where two processes do that at once.
    patch.setenv("HOME", home)
    pytest.importorskip("art", reason="needs adversarial-robustness-toolbox, which `make test` installs")
    from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescent
    from art.estimators.classification import PyTorchClassifier


def scaled(scores, chosen):
    """Cross-entropy of 20 times the scores; the oracle gives its own losses one-hot labels."""
    return nn.functional.cross_entropy(20 * scores, chosen.argmax(dim=1))


def margin(scores, chosen):
    return margin_loss(scores, chosen.argmax(dim=1))


def lenet():
    torch.manual_seed(0)
    return create_model("lenet").eval()


CASES = {
    "logits": (lenet, AttackLoss(), nn.CrossEntropyLoss()),
    "lengths": (lambda: create_model("pcapsnet2", pretrained=True), AttackLoss(scale=20.0), scaled),
    "margin": (lambda: create_model("pcapsnet2", pretrained=True), AttackLoss("margin"), margin),
}


@pytest.fixture(params=CASES, scope="module")
def case(request):
    make, own, theirs = CASES[request.param]
    model = make()
    assert request.param == "margin" or own == default_loss(model)
    oracle = PyTorchClassifier(
        model, loss=theirs, input_shape=(1, 28, 28), nb_classes=10, clip_values=(0.0, 1.0), device_type="cpu"
    )
    return model, own, oracle


def assert_same_images(own: torch.Tensor, theirs: np.ndarray, images: torch.Tensor) -> None:
    # Where a gradient is next to zero its sign is decided by rounding; a whole image may not depend on that.
    differing = (own - torch.from_numpy(theirs)).abs() > 1e-6
    assert differing.float().mean() < 2e-3, f"expected the oracle's pixels, got {differing.float().mean():.2%} others"
    assert (own != images).any()


@pytest.mark.parametrize("eps", [0.05, 0.3])
def test_fgsm_is_the_oracles(case, digits, eps):
    model, loss, oracle = case
    images, labels = digits.test.images.float() / 255, digits.test.labels
    theirs = FastGradientMethod(oracle, norm=np.inf, eps=eps).generate(images.numpy(), y=labels.numpy())
    assert_same_images(fgsm(model, images, labels, eps, loss=loss), theirs, images)


@pytest.mark.parametrize("eps", [0.05, 0.3])
def test_pgd_is_the_oracles(case, digits, eps):
    model, loss, oracle = case
    images, labels = digits.test.images[:20].float() / 255, digits.test.labels[:20]
    attack = ProjectedGradientDescent(
        oracle, norm=np.inf, eps=eps, eps_step=eps / 4, max_iter=7, num_random_init=0, verbose=False
    )
    theirs = attack.generate(images.numpy(), y=labels.numpy())
    own = pgd(model, images, labels, eps, steps=7, step_size=eps / 4, random_start=False, loss=loss)
    assert_same_images(own, theirs, images)
