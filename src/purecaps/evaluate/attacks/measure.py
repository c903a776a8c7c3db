"""What an attack leaves of a network's accuracy, against the size of the perturbation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError, DataError
from purecaps.evaluate.attacks.attack import Attack
from purecaps.evaluate.attacks.gradient import as_pixels, check_images, check_scores
from purecaps.evaluate.classification import in_eval_mode, wilson_interval

BATCH = 500
EXAMPLES = 10


@dataclass(frozen=True)
class Point:
    """A network's accuracy under perturbations of one size.

    Args:
        eps: the most that a pixel was allowed to change by; 0 for clean images.
        n: how many images were shown.
        correct: how many of them were still classified rightly.
        unmoved: how many came out of the attack as they went in: its loss had no gradient there.
    """

    eps: float
    n: int
    correct: int
    unmoved: int

    @property
    def accuracy(self) -> float:
        """Right predictions in percent."""
        return 100.0 * self.correct / self.n

    def interval(self) -> tuple[float, float]:
        """The Wilson 95 % interval of the accuracy, in percent: for lack of images, not of training runs."""
        return wilson_interval(self.correct, self.n)

    def as_dict(self) -> dict[str, object]:
        return {
            "eps": self.eps,
            "n": self.n,
            "correct": self.correct,
            "accuracy": self.accuracy,
            "interval": list(self.interval()),
            "unmoved": self.unmoved,
        }


@dataclass(frozen=True, eq=False)  # tensors do not compare to a bool
class AttackResult:
    """What `measure` found.

    Args:
        clean: accuracy on the images as they are.
        points: accuracy for each size of the perturbation, in the order asked for.
        examples: float [1 + E, k, C, H, W] on the CPU: some clean images, then the same perturbed by each size.
        labels: int64 [k], the examples' true classes.
        predictions: int64 [1 + E, k], what the network took them for.
    """

    clean: Point
    points: tuple[Point, ...]
    examples: Tensor
    labels: Tensor
    predictions: Tensor

    def __len__(self) -> int:
        return self.clean.n

    def as_dict(self) -> dict[str, object]:
        """The numbers for a JSON file, without the examples. Rates are in percent."""
        return {"n": len(self), "clean": self.clean.as_dict(), "points": [point.as_dict() for point in self.points]}


def measure(
    target: nn.Module,
    images: Tensor,
    labels: Tensor,
    attack: Attack,
    *,
    batch_size: int = BATCH,
    progress: Callable[[int], None] = lambda count: None,
) -> AttackResult:
    """The accuracy of `target` on images and on the same images perturbed.

    A white-box attack was made with `target` itself, a black-box attack with a substitute for it.

    Args:
        target: maps images [B, C, H, W] in [0, 1] to scores [B, K].
        images: uint8 [N, C, H, W], or float in [0, 1].
        labels: int64 [N], the true classes.
        attack: `by_fgsm`, `by_pgd` or `by_universal`.
        batch_size: images at a time.
        progress: told after each batch, for each size, how many images were done.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size: expected an int >= 1, got {batch_size}")
    if len(labels) != len(images):
        raise DataError(f"labels: expected one for each of {len(images)} images, got {len(labels)}")
    device = next((parameter.device for parameter in target.parameters()), images.device)
    sizes = (0.0, *attack.eps)
    shown = _first_of_each_class(labels)
    correct, unmoved = [0] * len(sizes), [0] * len(sizes)
    examples: list[list[Tensor]] = [[] for _ in sizes]
    predictions: list[list[Tensor]] = [[] for _ in sizes]
    for first in range(0, len(images), batch_size):
        part = slice(first, first + batch_size)
        clean, truth = as_pixels(images[part].to(device)), labels[part].to(device)
        check_images(clean, truth)
        if first == 0:
            _require_same_classes(target, attack.source, clean[:1])
        mine = [index - first for index in shown if first <= index < first + batch_size]
        variants = itertools.chain([clean], attack.apply(clean, truth, first))
        for position, variant in enumerate(variants):
            classes = predict(target, variant, truth)
            correct[position] += int((classes == truth).sum())
            unmoved[position] += int((variant == clean).flatten(1).all(dim=1).sum())
            examples[position].append(variant[mine].cpu())
            predictions[position].append(classes[mine].cpu())
            if position:
                progress(len(clean))
    points = [
        Point(size, len(images), right, still) for size, right, still in zip(sizes, correct, unmoved, strict=True)
    ]
    return AttackResult(
        clean=points[0],
        points=tuple(points[1:]),
        examples=torch.stack([torch.cat(rows) for rows in examples]),
        labels=labels[shown].cpu(),
        predictions=torch.stack([torch.cat(rows) for rows in predictions]),
    )


def predict(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The classes [B] that a model sees in images, in eval mode; its scores must cover the labels."""
    with torch.inference_mode(), in_eval_mode(model):
        scores = model(images)
        check_scores(scores, labels)
        classes: Tensor = scores.argmax(dim=1)
    return classes


def _require_same_classes(target: nn.Module, source: nn.Module, image: Tensor) -> None:
    if source is target:
        return
    with torch.inference_mode(), in_eval_mode(target), in_eval_mode(source):
        theirs, own = source(image).shape[-1], target(image).shape[-1]
    if theirs != own:
        raise ConfigError(f"source: expected {own} classes, as the target has, got {theirs}")


def _first_of_each_class(labels: Tensor) -> list[int]:
    if not len(labels):
        raise DataError("images: expected at least one, got none")
    classes = labels.unique()[:EXAMPLES].tolist()
    return sorted(int((labels == k).nonzero()[0, 0]) for k in classes)
