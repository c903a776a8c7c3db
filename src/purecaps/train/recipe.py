"""A recipe: everything that decides how a network is trained, but for the network, the data and the seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from purecaps.data.transforms import Compose, parse
from purecaps.errors import ConfigError, unknown_name
from purecaps.nn.conv import COEFFICIENTS
from purecaps.nn.init import SCHEMES
from purecaps.ops.geometry import SQUASH_GRADIENTS

LOSSES = ("margin", "cross_entropy", "spread")
OPTIMISERS = ("adamw", "adam", "rmsprop", "sgd", "muon")
SCHEDULES = ("step", "exponential", "inverse", "milestones", "cosine", "constant")
PREPROCESSING = ("none", "standardise", "gcn_zca")
PRECISIONS = ("fp32", "tf32", "bf16")
MOST_STEPS = 10**8 - 1  # the names of checkpoints have eight digits
MOST_IMAGES = 2**20  # of a batch: more is a slip of the keyboard
_NUMBERS: dict[str, tuple[str, tuple[type, ...]]] = {"int": ("an int", (int,)), "float": ("a number", (int, float))}


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
    optimiser: str = option("adamw", "How gradients become steps", OPTIMISERS)
    lr: float = option(0.002, "Peak learning rate.")
    schedule: str = option("step", "How the learning rate falls", SCHEDULES)
    step_every: int = option(4000, "With schedule step, exponential: steps to a fall; inverse: steps to half the rate.")
    step_factor: float = option(0.5, "With schedule step, exponential, milestones: what the rate is multiplied with.")
    milestones: tuple[float, ...] = option((), "With schedule milestones: shares of the steps where it falls.")
    min_lr: float = option(0.0, "What the rate does not fall below.")
    warmup: float = option(0.0, "Share of the steps in which the rate rises from 0.")
    beta1: float = option(0.9, "Decay of the gradient average: Adam's beta1, SGD's and Muon's momentum.")
    beta2: float = option(0.999, "Decay of the squared-gradient average: Adam's beta2, RMSprop's alpha.")
    adam_eps: float = option(1e-8, "Adam's and RMSprop's epsilon.")
    weight_decay: float = option(0.0, "Weight decay: decoupled with adamw and muon, else added to the gradient.")
    grad_clip: float = option(0.0, "Largest norm of the whole gradient; 0 does not clip.")
    ema: float = option(0.0, "Decay of the averaged weights that are evaluated and saved; 0 keeps none.")
    loss: str = option("margin", "What is minimised", LOSSES)
    m_pos: float = option(0.5, "Margin loss: length that the true class should exceed.")
    m_neg: float = option(0.1, "Margin loss: length that other classes should stay below.")
    lam: float = option(0.5, "Margin loss: weight of the other classes.")
    spread_from: float = option(0.2, "Spread loss: margin of the first step.")
    spread_to: float = option(0.9, "Spread loss: margin of the last step.")
    scale: float = option(10.0, "Cross-entropy: what scores are multiplied with; 1 for logits.")
    label_smoothing: float = option(0.0, "Cross-entropy: share of the target spread over all classes.")
    adversary_eps: float = option(0.0, "Adversarial training: the most that a pixel of [0, 1] changes; 0 is none.")
    adversary_steps: int = option(1, "Adversarial training: gradient steps on each batch of images.")
    mixup: float = option(0.0, "Mixup: the most of another image of the batch that is mixed into each; 0 is none.")
    teacher_share: float = option(
        0.0, "Distillation: share of the target that is the teacher's opinion; the rest is the label."
    )
    teacher_temperature: float = option(1.0, "Distillation: what the teacher's logits are divided by.")
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
    log_every: int = option(100, "Most steps between two rows of metrics; a validation and a checkpoint have theirs.")
    eval_every: int = option(2000, "Steps between two validations; also at the end.")
    checkpoint_every: int = option(1000, "Steps between two checkpoints.")

    def __post_init__(self) -> None:
        self._check_numbers()
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
            most = MOST_IMAGES if name == "batch_size" else MOST_STEPS
            self._require(name, f"an int up to {most}", getattr(self, name) <= most)
        for name in ("lr", "step_factor", "adam_eps", "scale", "teacher_temperature", "pixel_scale"):
            self._require(name, "a finite number above 0", 0 < getattr(self, name) < math.inf)
        for name in (
            "beta1",
            "beta2",
            "ema",
            "label_smoothing",
            "warmup",
            "adversary_eps",
            "mixup",
            "init_correlation",
        ):
            self._require(name, "a number in [0, 1)", 0 <= getattr(self, name) < 1)
        self._require("teacher_share", "a number in [0, 1]", 0 <= self.teacher_share <= 1)
        for name in ("weight_decay", "min_lr", "grad_clip", "val_size", "probe_size", "m_neg", "lam", "spread_from"):
            self._require(name, "a finite number >= 0", 0 <= getattr(self, name) < math.inf)
        self._require("min_lr", f"a number up to lr, {self.lr}", self.min_lr <= self.lr)
        self._require("m_pos", "a number above m_neg", self.m_pos > self.m_neg)
        self._require("spread_to", "a number from spread_from on", self.spread_from <= self.spread_to < math.inf)
        self._require("milestones", "shares between 0 and 1", all(0 < share < 1 for share in self.milestones))
        if self.schedule == "milestones":
            self._require("milestones", "one or more with schedule milestones", len(self.milestones) > 0)
        for item in dataclasses.fields(self):
            choices, value = item.metadata["choices"], getattr(self, item.name)
            if choices and value is not None and value not in choices:
                raise unknown_name(item.name, str(value), choices)
        self._check_adversary(parse(self.augment))
        for name in ("mixup", "teacher_share"):
            if getattr(self, name):
                self._require(
                    name, f"0 with loss {self.loss}, whose targets are single classes", self.loss == "cross_entropy"
                )
                self._require("adversary_eps", f"0 with {name} {getattr(self, name)}", not self.adversary_eps)

    def _check_numbers(self) -> None:
        """Before anything is compared: a string of digits would be a TypeError, and half a step would be taken."""
        for item in dataclasses.fields(self):
            kind, value = str(item.type).removesuffix(" | None"), getattr(self, item.name)
            if kind in _NUMBERS and not (value is None and kind != item.type):
                expected, kinds = _NUMBERS[kind]
                self._require(item.name, expected, isinstance(value, kinds) and not isinstance(value, bool))

    def _check_adversary(self, augment: Compose) -> None:
        without_range = ["preprocess gcn_zca"] if self.preprocess == "gcn_zca" else []
        without_range += [f"augment {each}" for each in augment.transforms if not each.keeps_range]
        if self.adversary_eps and without_range:
            raise ConfigError(
                f"adversary_eps: expected 0 with {without_range[0]}: such images have no range of pixels to stay in, "
                f"got {self.adversary_eps}"
            )

    def _require(self, name: str, expected: str, holds: bool) -> None:
        if not holds:
            raise ConfigError(f"{name}: expected {expected}, got {getattr(self, name)!r}")

    def replace(self, **changes: Any) -> Recipe:
        """This recipe with some fields changed."""
        known = {item.name for item in dataclasses.fields(self)}
        for name in changes.keys() - known:
            raise unknown_name("recipe option", name, known)
        return dataclasses.replace(self, **changes)

    def in_steps(self, steps: int) -> Recipe:
        """The same recipe in fewer or more steps: its schedule shrinks or stretches with them."""
        return self.replace(steps=steps, step_every=max(1, round(self.step_every * steps / self.steps)))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Recipe:
        sequences = {name: tuple(values[name]) for name in ("augment", "milestones") if name in values}
        return cls().replace(**{**values, **sequences})

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
