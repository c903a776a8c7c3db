"""Quantisation-aware training: a few more steps in which the network already feels the rounding of its integers."""

from __future__ import annotations

import copy
import time
from dataclasses import replace

import torch
from torch import Tensor, nn

from purecaps.data.types import Dataset
from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models.pcapsnet import PCapsNet
from purecaps.ops import caps_block
from purecaps.quant.calibrate import Ranges, observe, require_quantisable
from purecaps.quant.convert import output_scale, quantise_kernel
from purecaps.train.checkpoint import State
from purecaps.train.log import Silent, Watcher
from purecaps.train.loop import DivergedError
from purecaps.train.optimiser import make_optimiser
from purecaps.train.prepare import prepare
from purecaps.train.recipe import Recipe
from purecaps.train.recipes import get_recipe
from purecaps.train.schedule import learning_rate
from purecaps.train.step import EagerStepper

STEPS = 2000
LR = 5e-4


class RoundedPCapsNet(nn.Module):
    """A P-CapsNet in float whose pixels, weights and capsules are rounded as in its quantised form.

    Rounding has no useful gradient: backwards it counts as the identity, and as a constant outside a layer's range.

    Args:
        model: the network; its weights are shared and stay in float.
        ranges: of each layer's output.
        pixel_scale: the step of the images.

    Shape:
        images [B, C, H, W] in [0, 1] -> lengths [B, num_classes]
    """

    def __init__(self, model: PCapsNet, ranges: Ranges, pixel_scale: float) -> None:
        super().__init__()
        self.model, self.pixel_scale = model, pixel_scale
        self.scales = [output_scale(low, high) for low, high in ranges.outputs]

    def forward(self, images: Tensor) -> Tensor:
        u = self.model.as_capsules(rounded(images, self.pixel_scale, 0))
        for index, block in enumerate(self.model.capsule_blocks()):
            kernel = block.conv.kernel()
            steps, scale = quantise_kernel(kernel)
            weight = _as_if(steps.detach() * scale, kernel)
            stride, padding, dilation = block.conv.geometry
            u = caps_block(
                block.conv.fit(u),
                weight,
                stride=stride,
                padding=padding,
                dilation=dilation,
                negative_slope=block.negative_slope,
                squash_chunk=block.squash_chunk,
                impl=block.conv.impl,
            )
            if index < len(self.scales):
                u = rounded(u, *self.scales[index])
        lengths: Tensor = self.model.head(u)
        return lengths


def rounded(x: Tensor, step: float, zero: int) -> Tensor:
    """x to the nearest of step * (-zero, ..., 255 - zero); the gradient is 1 inside that range and 0 outside."""
    inside = x.clamp(-zero * step, (255 - zero) * step)
    return _as_if((inside.detach() / step).round() * step, inside)


def _as_if(value: Tensor, x: Tensor) -> Tensor:
    """`value`, with the gradient of `x`."""
    return x + (value - x).detach()


def quantisation_aware(
    trained: TrainedModel,
    dataset: Dataset,
    calibration: Tensor,
    *,
    steps: int = STEPS,
    lr: float = LR,
    seed: int = 0,
    device: torch.device | str = "cpu",
    watcher: Watcher | None = None,
) -> TrainedModel:
    """The network trained on for a while with rounding in it; `quantise` what this returns.

    The loss and the held-out images are those of the default recipe; augmentation is the network's own.

    Args:
        trained: the network; it is not changed.
        dataset: what to train on; its test images are not read.
        calibration: raw uint8 training images that each layer's range is found on, before the first step.
        steps: how many.
        lr: the learning rate that falls to 0 along half a cosine.
        seed: of the order of images and their transforms.
        device: where to train.
        watcher: who is told of the progress.
    """
    info = trained.info
    if dataset.in_shape != info.image_shape or dataset.num_classes != info.num_classes:
        raise ConfigError(
            f"dataset: expected images {info.image_shape} of {info.num_classes} classes, as {info.name} was trained "
            f"on, got {dataset.in_shape} of {dataset.num_classes}"
        )
    model = copy.deepcopy(require_quantisable(trained)).to(device)
    ranges = observe(replace(trained, model=model), calibration)
    recipe = get_recipe("default", dataset).replace(
        steps=steps,
        lr=lr,
        schedule="cosine",
        warmup=0.0,
        weight_decay=0.0,
        augment=info.augment,
        pixel_scale=info.pixel_scale,
        preprocess="none",  # the network standardises its own input
    )
    network = RoundedPCapsNet(model, ranges, info.pixel_scale)
    state = State(network, make_optimiser(network, recipe), {})
    loader = prepare(dataset, recipe, seeds=(seed,), device=device).train
    _take_steps(EagerStepper(state, loader, recipe), recipe, watcher or Silent())
    return replace(trained, model=model.eval())


def _take_steps(stepper: EagerStepper, recipe: Recipe, watcher: Watcher) -> None:
    def advance(step: int) -> bool:
        watcher.advance(step)
        return True

    watcher.start(recipe.steps, 0)
    try:
        for first in range(0, recipe.steps, recipe.log_every):
            begun = time.perf_counter()
            losses, mistakes = stepper(first, min(first + recipe.log_every, recipe.steps), advance)
            images = len(losses) * recipe.batch_size
            if not bool(losses.isfinite().all()):
                raise DivergedError(
                    f"step {first + len(losses) - 1}: expected a finite loss, got {float(losses[-1])}; try a lower --lr"
                )
            done = first + len(losses)
            watcher.row(
                {
                    "step": done,
                    "loss": float(losses.mean()),
                    "error": 100 * float(mistakes) / images,
                    "lr": learning_rate(recipe, done - 1),
                    "images_per_s": images / (time.perf_counter() - begun),
                }
            )
    finally:
        watcher.stop()
