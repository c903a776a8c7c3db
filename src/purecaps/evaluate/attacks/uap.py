"""One perturbation for all images, made by a small generative network: the white-box attack of the paper.

The paper's appendix gives the generator's layers. It does not give activations, optimiser, batch or the bound of the
perturbation: here ReLU between the layers, and at the end tanh times eps, which bounds it as the other attacks are.

The paper's aim, class y + 1 for every image of class y, is hard to meet with one change for all classes, and failing at
it a network may well keep its accuracy. So there is a second aim, any other class, which asks what such a change can
do at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from torch import Tensor, nn

from purecaps.data.random import key, randint, uniform
from purecaps.errors import ConfigError, PurecapsError, unknown_name
from purecaps.evaluate.attacks.attack import Attack
from purecaps.evaluate.attacks.gradient import (
    as_pixels,
    check_eps,
    check_images,
    check_scores,
    perturb,
    perturb_for_training,
    require_gradient,
)
from purecaps.evaluate.attacks.loss import AttackLoss, default_loss
from purecaps.evaluate.classification import in_eval_mode

NOISE = 100
UAP_STEPS = 1000
AIMS = ("next", "any")
_IMAGES, _INPUT, _FINAL = 0, 1, 2  # streams of the seed


class Generator(nn.Module):
    """The appendix's network from a vector in [-1, 1] to a perturbation in [-1, 1].

    A fully connected layer makes 3 x 3 x 384 numbers, and three transposed convolutions turn them into a 7x7, a 14x14
    and a 28x28 map. For images of other sizes the first map is larger or smaller, and the last one is cropped.

    Args:
        in_shape: the images' (channels, height, width).

    Shape:
        noise [N, 100] -> perturbations [N, C, H, W]
    """

    def __init__(self, in_shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.size = (in_shape[1], in_shape[2])
        # The layers below make 4 (side + 4) of a side: 28 of 3.
        self.base = tuple(max(1, -(-side // 4) - 4) for side in self.size)
        self.start = nn.Linear(NOISE, 384 * self.base[0] * self.base[1])
        self.maps = nn.Sequential(
            nn.ReLU(),
            nn.ConvTranspose2d(384, 192, 5),
            nn.ReLU(),
            nn.ConvTranspose2d(192, 96, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(96, in_shape[0], 4, stride=2, padding=1),
            nn.Tanh(),
        )

    def forward(self, noise: Tensor) -> Tensor:
        maps: Tensor = self.maps(self.start(noise).view(-1, 384, *self.base))
        return maps[:, :, : self.size[0], : self.size[1]]


def train_universal(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    eps: float,
    *,
    steps: int = UAP_STEPS,
    batch_size: int = 128,
    lr: float = 1e-3,
    seed: int = 0,
    aim: str = "next",
    loss: AttackLoss | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """A perturbation [C, H, W] within eps that is meant to make the model see a wrong class in every image.

    In every step a fresh vector becomes one perturbation for a whole batch, and Adam moves the generator's weights to
    lower the loss of the wrong class, or of all wrong classes together. The perturbation returned is that of one more
    vector.

    Args:
        model: maps images [B, C, H, W] in [0, 1] to scores [B, K]; its weights and gradients are left as they are.
        images: what to train on, uint8 [N, C, H, W], or float in [0, 1]: not the images it will be measured on.
        labels: int64 [N], the true classes.
        eps: the most that a pixel changes by.
        steps: of the generator's training.
        batch_size: images a step.
        lr: Adam's learning rate.
        seed: of the generator's weights, its input and the order of images.
        aim: "next" means class (y + 1) mod K for images of class y, as in the paper; "any" means any but y.
        loss: what is to fall for the wrong class or classes; None takes `default_loss(model)`.
        progress: told 1 after each step.
    """
    check_eps(eps)
    if steps < 1 or batch_size < 1:
        raise ConfigError(f"steps, batch_size: expected ints >= 1, got {steps} and {batch_size}")
    if aim not in AIMS:
        raise unknown_name("aim", aim, AIMS)
    check_images(as_pixels(images[:1]), labels[:1])
    _, channels, height, width = images.shape
    chosen = loss or default_loss(model)
    device = next((parameter.device for parameter in model.parameters()), images.device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = Generator((channels, height, width)).to(device)
    weights = list(generator.parameters())
    optimiser = torch.optim.Adam(weights, lr=lr, fused=True)
    with torch.inference_mode(False), torch.enable_grad(), in_eval_mode(model):
        for step in range(steps):
            taken = randint(key(seed, _IMAGES, step), 0, len(images), (batch_size,)).to(images.device)
            clean, truth = as_pixels(images[taken].to(device)), labels[taken].to(device)
            check_images(clean, truth)
            change = eps * generator(_noise(seed, _INPUT, step, device))
            scores = model(perturb_for_training(clean, change))
            check_scores(scores, truth)
            require_gradient(scores)
            if aim == "next":
                objective = chosen(scores, (truth + 1) % scores.shape[1]) / batch_size
            else:
                objective = chosen.of_any_other(scores, truth) / batch_size
            if not bool(objective.isfinite()):
                raise PurecapsError(f"step {step}: expected a finite loss, got {float(objective)}; try a lower lr")
            for weight, gradient in zip(weights, torch.autograd.grad(objective, weights), strict=True):
                weight.grad = gradient
            optimiser.step()
            progress(1)
    with torch.no_grad():
        found: Tensor = eps * generator(_noise(seed, _FINAL, 0, device))[0]
    return found


def by_universal(source: nn.Module, perturbations: Mapping[float, Tensor]) -> Attack:
    """Universal perturbations [C, H, W] of some sizes, made with `source`, as `measure` takes them."""

    def moved(images: Tensor, labels: Tensor, first: int) -> Iterator[Tensor]:
        for perturbation in perturbations.values():
            yield perturb(images, perturbation.to(images.device))

    return Attack(tuple(perturbations), source, moved)


def _noise(seed: int, stream: int, step: int, device: torch.device) -> Tensor:
    return (2 * uniform(key(seed, stream, step), (1, NOISE)) - 1).to(device)
