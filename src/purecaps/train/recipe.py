"""A recipe: everything that decides how a network is trained, but for the network, the data and the seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from purecaps.data.transforms import parse
from purecaps.errors import ConfigError, unknown_name
from purecaps.nn.conv import COEFFICIENTS
from purecaps.nn.init import SCHEMES
from purecaps.ops.geometry import SQUASH_GRADIENTS

LOSSES = ("margin", "cross_entropy")
SCHEDULES = ("step", "cosine", "constant")
PREPROCESSING = ("none", "standardise", "gcn_zca")
PRECISIONS = ("fp32", "tf32", "bf16")


def option(default: Any, text: str, choices: tuple[str, ...] = ()) -> Any:
    """A field whose help text is also the command line's."""
    if choices:
        text = f"{text}: {', '.join(choices)}."
    return field(default=default, metadata={"help": text, "choices": choices})


@dataclass(frozen=True)
class Recipe:
    """How to train. Every field can be overridden on the command line; each says what it does in its help text."""

    steps: int = option(30_000, "Number of training steps.")
    batch_size: int = option(128, "Images in each step.")
    lr: float = option(0.002, "Peak learning rate of Adam.")
    schedule: str = option("step", "How the learning rate falls", SCHEDULES)
    step_every: int = option(4000, "With schedule=step: steps between two falls.")
    step_factor: float = option(0.5, "With schedule=step: what the rate is multiplied with.")
    warmup: float = option(0.0, "Share of the steps in which the rate rises from 0.")
    beta1: float = option(0.9, "Adam's decay of the gradient average.")
    beta2: float = option(0.999, "Adam's decay of the squared-gradient average.")
    adam_eps: float = option(1e-8, "Adam's epsilon.")
    weight_decay: float = option(0.0, "Decoupled weight decay (AdamW).")
    grad_clip: float = option(0.0, "Largest norm of the whole gradient; 0 does not clip.")
    ema: float = option(0.0, "Decay of the averaged weights that are evaluated and saved; 0 keeps none.")
    loss: str = option("margin", "What is minimised", LOSSES)
    m_pos: float = option(0.5, "Margin loss: length that the true class should exceed.")
    m_neg: float = option(0.1, "Margin loss: length that other classes should stay below.")
    lam: float = option(0.5, "Margin loss: weight of the other classes.")
    scale: float = option(10.0, "Cross-entropy: what scores are multiplied with; 1 for logits.")
    label_smoothing: float = option(0.0, "Cross-entropy: share of the target spread over all classes.")
    adversary_eps: float = option(0.0, "Adversarial training: the most that a pixel of [0, 1] changes; 0 is none.")
    adversary_steps: int = option(1, "Adversarial training: gradient steps on each batch of images.")
    augment: tuple[str, ...] = option((), "Random transforms, such as shift:2 or flip; repeatable.")
    preprocess: str = option("none", "What is done to all images beforehand", PREPROCESSING)
    pixel_scale: float = option(1 / 255, "What raw 0..255 pixels are multiplied with.")
    init: str | None = option("msra", "Initial weights", SCHEMES)
    init_correlation: float = option(0.0, "Initial weights: correlation between the positions of a kernel.")
    coefficients: str | None = option(None, "Explicit coupling coefficients that are learned, else none", COEFFICIENTS)
    squash_chunk: int | None = option(None, "Squash runs of this many numbers in hidden layers, not whole capsules.")
    squash_gradient: str | None = option(None, "Gradient of squash, else exact", SQUASH_GRADIENTS)
    precision: str = option("fp32", "Arithmetic of the network", PRECISIONS)
    val_size: int = option(0, "Training images held out to watch the run; never the test set.")
    probe_size: int = option(0, "Training images whose loss is watched beside theirs, untransformed.")
    log_every: int = option(100, "Steps between two rows of metrics.")
    eval_every: int = option(2000, "Steps between two validations; also at the end.")
    checkpoint_every: int = option(1000, "Steps between two checkpoints.")

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "step_every",
            "adversary_steps",
            "log_every",
            "eval_every",
            "checkpoint_every",
        ):
            self._require(name, "an int >= 1", getattr(self, name) >= 1)
        for name in ("lr", "step_factor", "adam_eps", "scale", "pixel_scale"):
            self._require(name, "a finite number above 0", 0 < getattr(self, name) < math.inf)
        for name in ("beta1", "beta2", "ema", "label_smoothing", "warmup", "adversary_eps", "init_correlation"):
            self._require(name, "a number in [0, 1)", 0 <= getattr(self, name) < 1)
        for name in ("weight_decay", "grad_clip", "val_size", "probe_size", "m_neg", "lam"):
            self._require(name, "a finite number >= 0", 0 <= getattr(self, name) < math.inf)
        self._require("m_pos", "a number above m_neg", self.m_pos > self.m_neg)
        for item in dataclasses.fields(self):
            choices, value = item.metadata["choices"], getattr(self, item.name)
            if choices and value is not None and value not in choices:
                raise unknown_name(item.name, str(value), choices)
        if self.adversary_eps and self.preprocess == "gcn_zca":
            raise ConfigError(
                "adversary_eps: expected 0 with preprocess gcn_zca: whitened images have no range of pixels to stay "
                f"in, got {self.adversary_eps}"
            )
        parse(self.augment)

    def _require(self, name: str, expected: str, holds: bool) -> None:
        if not holds:
            raise ConfigError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

    def replace(self, **changes: Any) -> Recipe:
        """This recipe with some fields changed."""
        known = {item.name for item in dataclasses.fields(self)}
        for name in changes.keys() - known:
            raise unknown_name("recipe option", name, known)
        return dataclasses.replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        return cls().replace(**{**values, "augment": tuple(values["augment"])})

    def model_options(self) -> dict[str, Any]:
        """What the recipe asks of the network itself; what it leaves open is not passed on."""
        options = {
            "init": self.init,
            "init_correlation": self.init_correlation or None,
            "coefficients": self.coefficients,
            "squash_chunk": self.squash_chunk,
            "squash_gradient": self.squash_gradient,
        }
        return {name: value for name, value in options.items() if value is not None}
