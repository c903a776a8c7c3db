"""How often a classifier is wrong, on which classes and on which images."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError, DataError

Z95 = 1.959963984540054  # the normal quantile that leaves 2.5 % on either side


@dataclass(frozen=True)
class ClassRow:
    """One class of a `Result`.

    Args:
        name: the class's name, or its index where no names were given.
        n: how many images are of this class.
        errors: how many of them were taken for another class.
        error_rate: errors in percent of n; None if there are no images.
        most_confused_with: the class most often predicted in its place; None if there are no errors.
    """

    name: str
    n: int
    errors: int
    error_rate: float | None
    most_confused_with: str | None


@dataclass(frozen=True, eq=False)  # tensors do not compare to a bool
class Result:
    """The scores a model gave a set of labelled images, and what follows from them.

    Args:
        scores: float32 [N, K] on the CPU, the higher the likelier; finite.
        labels: int64 [N], the true classes, each in 0 to K - 1.
    """

    scores: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.scores.ndim != 2 or 0 in self.scores.shape:
            raise DataError(f"scores: expected [N, K] with N, K > 0, got {list(self.scores.shape)}")
        n, k = self.scores.shape
        if self.labels.shape != (n,):
            raise DataError(f"labels: expected [{n}], one for each row of scores, got {list(self.labels.shape)}")
        if self.labels.dtype != torch.int64:
            raise DataError(f"labels: expected torch.int64, got {self.labels.dtype}")
        low, high = int(self.labels.min()), int(self.labels.max())
        if low < 0 or high >= k:
            raise DataError(f"labels: expected 0 to {k - 1} for {k} scores an image, got {low} to {high}")
        broken = (~self.scores.isfinite()).any(dim=1).nonzero().flatten()
        if len(broken):
            raise DataError(
                f"scores: expected finite numbers, got non-finite ones for {len(broken)} of {n} images, "
                f"the first at index {int(broken[0])}"
            )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        return self.scores.shape[1]

    @cached_property
    def predictions(self) -> Tensor:
        """int64 [N]: the class of the highest score; of equal scores, the first class."""
        return self.scores.argmax(dim=1)

    @property
    def errors(self) -> int:
        """How many predictions are wrong."""
        return int((self.predictions != self.labels).sum())

    @property
    def error_rate(self) -> float:
        """Wrong predictions in percent."""
        return 100.0 * self.errors / len(self)

    def interval(self) -> tuple[float, float]:
        """The Wilson 95 % interval of the error rate, in percent.

        It says how far the error could be off for lack of test images; it knows nothing of the spread
        between training runs.
        """
        return wilson_interval(self.errors, len(self))

    @cached_property
    def confusion(self) -> Tensor:
        """int64 [K, K]: how many images of class (row) were taken for class (column)."""
        k = self.num_classes
        return torch.bincount(self.labels * k + self.predictions, minlength=k * k).view(k, k)

    def per_class(self, class_names: Sequence[str] | None = None) -> list[ClassRow]:
        """One row a class, in the order of the classes.

        Args:
            class_names: K names; the classes' indexes if left out.
        """
        names = self.names(class_names)
        mistakes = self.confusion.clone().fill_diagonal_(0)
        rows = []
        for k, name in enumerate(names):
            n, errors = int(self.confusion[k].sum()), int(mistakes[k].sum())
            rows.append(
                ClassRow(
                    name=name,
                    n=n,
                    errors=errors,
                    error_rate=100.0 * errors / n if n else None,
                    most_confused_with=names[int(mistakes[k].argmax())] if errors else None,
                )
            )
        return rows

    def names(self, class_names: Sequence[str] | None = None) -> list[str]:
        """`class_names` if there is one for each class; without them the classes' indexes."""
        names = [str(k) for k in range(self.num_classes)] if class_names is None else list(class_names)
        if len(names) != self.num_classes:
            raise ConfigError(f"class_names: expected {self.num_classes}, one for each class scored, got {len(names)}")
        return names

    def most_confused(self, k: int) -> list[int]:
        """Indexes of the k worst mistakes, the worst first; fewer if there are fewer mistakes.

        A mistake is the worse, the further the winning score lies above that of the true class.
        """
        if k < 0:
            raise ConfigError(f"k: expected 0 or more, got {k}")
        wrong = (self.predictions != self.labels).nonzero().flatten()
        rows = self.scores[wrong]
        margin = rows.max(dim=1).values - rows.gather(1, self.labels[wrong].unsqueeze(1)).squeeze(1)
        order = margin.argsort(descending=True, stable=True)[:k]
        return [int(i) for i in wrong[order]]

    def as_dict(self) -> dict[str, object]:
        """The numbers for a JSON file, without the scores. Rates are in percent."""
        return {
            "n": len(self),
            "errors": self.errors,
            "error_rate": self.error_rate,
            "interval": list(self.interval()),
            "per_class": [{"n": row.n, "errors": row.errors} for row in self.per_class()],
            "confusion": self.confusion.tolist(),
        }


def wilson_interval(count: int, n: int) -> tuple[float, float]:
    """The Wilson 95 % interval of a rate of which `count` in `n` were seen, in percent."""
    rate = count / n
    scale = 1.0 / (1.0 + Z95**2 / n)
    middle = scale * (rate + Z95**2 / (2 * n))
    half = scale * Z95 * math.sqrt(rate * (1.0 - rate) / n + Z95**2 / (4 * n**2))
    return 100.0 * max(0.0, middle - half), 100.0 * min(1.0, middle + half)


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """The model in eval mode; afterwards every module's mode is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def evaluate(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    *,
    num_classes: int,
    progress: Callable[[int], None] = lambda count: None,
) -> Result:
    """Scores every batch with the model in eval mode, and leaves the model's mode as it was.

    Args:
        model: maps images [B, C, H, W] to scores [B, num_classes].
        batches: images and labels [B]; images on the model's device.
        num_classes: how many scores an image is to get.
        progress: told after each batch how many images were done.
    """
    scores, labels = [], []
    with in_eval_mode(model), torch.inference_mode():
        for images, target in batches:
            score = model(images)
            if score.shape != (len(images), num_classes):
                raise ConfigError(
                    f"num_classes: expected scores [{len(images)}, {num_classes}] from the model, "
                    f"got {list(score.shape)}"
                )
            scores.append(score.to("cpu", torch.float32))
            labels.append(target.to("cpu"))
            progress(len(images))
    if not scores:
        raise DataError("batches: expected at least one batch of images, got none")
    # Tensors made under inference_mode refuse autograd; concatenating outside of it makes plain ones.
    return Result(scores=torch.cat(scores), labels=torch.cat(labels))
