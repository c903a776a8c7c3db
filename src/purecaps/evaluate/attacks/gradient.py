"""What all attacks stand on: checked arguments, the gradient at the image, and the step that stays inside the box."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError, DataError, PurecapsError
from purecaps.evaluate.attacks.loss import AttackLoss
from purecaps.evaluate.classification import in_eval_mode
from purecaps.ops.validation import shape_text


def check_eps(eps: float) -> None:
    if not 0 <= eps <= 1:
        raise ConfigError(f"eps: expected a number in [0, 1], the range of a pixel, got {eps}")


def check_images(images: Tensor, labels: Tensor) -> None:
    """Refuses what is not float images [B, C, H, W] in [0, 1] with int64 labels [B]."""
    if images.dim() != 4 or not images.is_floating_point() or images.numel() == 0:
        raise DataError(
            f"images: expected floating point [B, C, H, W] with at least one image, "
            f"got {images.dtype} {shape_text(images.shape)}"
        )
    if labels.dtype != torch.int64 or labels.shape != images.shape[:1]:
        raise DataError(
            f"labels: expected int64 [{len(images)}], one for each image, got {labels.dtype} {shape_text(labels.shape)}"
        )
    low, high = float(images.min()), float(images.max())
    if not (low >= 0 and high <= 1):
        raise DataError(f"images: expected pixels in [0, 1], got {low:g} to {high:g}")


def check_scores(scores: Tensor, labels: Tensor) -> None:
    """Refuses scores that are not [B, K], and labels that are none of the K classes."""
    if scores.dim() != 2 or len(scores) != len(labels):
        raise ConfigError(f"model: expected scores [{len(labels)}, K], got {shape_text(scores.shape)}")
    low, high, classes = int(labels.min()), int(labels.max()), scores.shape[1]
    if low < 0 or high >= classes:
        raise DataError(f"labels: expected 0 to {classes - 1} for {classes} scores an image, got {low} to {high}")


def require_gradient(scores: Tensor) -> None:
    """Refuses scores that no gradient leads back from."""
    if not scores.requires_grad:
        raise ConfigError(
            f"model: expected scores with a gradient with respect to the images, got {scores.dtype} scores without; "
            "it may run under no_grad, or round, or return class numbers"
        )


def input_gradient(model: nn.Module, images: Tensor, labels: Tensor, loss: AttackLoss) -> Tensor:
    """The gradient of the loss at each image, [B, C, H, W]; the model's own gradients are left as they are.

    The model runs in eval mode, whatever mode it is in, and under no caller's `no_grad` or `inference_mode`.
    """
    with torch.inference_mode(False), torch.enable_grad(), in_eval_mode(model):
        at = images.detach().clone().requires_grad_()
        scores = model(at)
        check_scores(scores, labels)
        require_gradient(scores)
        (gradient,) = torch.autograd.grad(loss(scores, labels.clone()), at, allow_unused=True)
    if gradient is None:
        raise ConfigError("model: expected scores that depend on the images, got some that do not")
    broken = (~gradient.isfinite()).flatten(1).any(dim=1).nonzero().flatten()
    if len(broken):
        raise PurecapsError(
            f"model: expected a finite gradient, got a non-finite one for {len(broken)} of {len(images)} images, "
            f"the first at index {int(broken[0])}"
        )
    result: Tensor = gradient
    return result


def perturb(images: Tensor, change: Tensor) -> Tensor:
    """Images with `change` added, back inside [0, 1]."""
    return (images + change).clamp(0.0, 1.0)


def perturb_for_training(images: Tensor, change: Tensor) -> Tensor:
    """As `perturb`, but the change's gradient is that of the sum.

    The clamp's own gradient is zero where a pixel leaves the box, so at a black pixel that the change makes darker: a
    change that has once become negative there would never learn that a positive one hurts more.
    """
    moved = images + change
    return moved + (moved.clamp(0.0, 1.0) - moved).detach()


def as_pixels(images: Tensor) -> Tensor:
    """uint8 images as float32 in [0, 1]; float images as they are."""
    return images.to(torch.float32).mul_(1 / 255) if images.dtype == torch.uint8 else images
