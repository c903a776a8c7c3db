"""What a batch becomes before it is learned from: images mixed, labels turned into what is to be answered."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from purecaps.data.loader import DeviceLoader
from purecaps.data.random import key
from purecaps.errors import ConfigError
from purecaps.models.guided import is_guided
from purecaps.models.stack import ModelStack
from purecaps.ops.validation import shape_text
from purecaps.train import mixup
from purecaps.train.recipe import Recipe
from purecaps.train.teacher import Teacher


def targets_of(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    loader: DeviceLoader,
    step: int | Tensor,
    teacher: Teacher | None,
) -> tuple[Tensor, Tensor]:
    """The batch as it is by the recipe: mixed where it says so, and with the teacher's opinion of that in the targets.

    Without either, images and labels are returned as they are.

    Args:
        model: the network in training, or a stack of them.
        images: [B, C, H, W]; for a stack [S, B, C, H, W].
        labels: int64 [B] or [S, B].
        recipe: how much of what.
        loader: what the batch is from.
        step: the training step; as a tensor on the device, this can be captured in a CUDA graph.
        teacher: whom to ask; None asks nobody.

    Returns:
        Images, and class probabilities [(S,) B, K] or the labels.
    """
    if not recipe.mixup and teacher is None:
        return images, labels
    targets = _one_hot(labels, model)
    if recipe.mixup:
        stream = key(loader.seed, mixup.STREAM, step, device=images.device)
        images, targets = mixup.mixed(images, targets, recipe.mixup, stream)
    if teacher is not None:
        targets = targets.lerp(teacher.opinion(images, recipe.teacher_temperature), recipe.teacher_share)
    return images, targets


def require_labels(network: nn.Module, recipe: Recipe) -> None:
    """Refuses to train a network that is shown the labels on targets that are none."""
    for name in ("mixup", "teacher_share"):
        if getattr(recipe, name) and is_guided(network):
            raise ConfigError(
                f"{name}: expected 0 for {type(network).__name__}, which is shown the labels in training, "
                f"got {getattr(recipe, name)}"
            )


@torch.no_grad()
def require_trainable(network: nn.Module, in_shape: tuple[int, int, int], num_classes: int) -> None:
    """Refuses a network that has nothing to train, or other scores than one for each class, before the first step."""
    weight = next(network.parameters(), None)
    name = type(network).__name__
    if weight is None:
        raise ConfigError(f"model: expected a network with parameters to train, got {name}, which has none")
    was_training = network.training
    scores = network.eval()(torch.zeros(1, *in_shape, dtype=weight.dtype, device=weight.device))
    network.train(was_training)
    if not isinstance(scores, Tensor) or tuple(scores.shape) != (1, num_classes):
        got = shape_text(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ConfigError(f"model: expected scores [1, {num_classes}] for one image from {name}, got {got}")


def _one_hot(labels: Tensor, model: nn.Module) -> Tensor:
    """float32 [*labels.shape, K]. Not F.one_hot, which reads the labels back to check them."""
    network = model.template if isinstance(model, ModelStack) else model
    classes = torch.arange(int(network.num_classes), device=labels.device)  # type: ignore[arg-type]
    return (labels[..., None] == classes).to(torch.float32)
