"""Trained networks as files: weights together with all that is needed to use them again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from purecaps.errors import CheckpointError, ConfigError
from purecaps.models.registry import build_model, get_entry
from purecaps.tensorfile import read_tensors, write_tensors


@dataclass(frozen=True)
class ModelInfo:
    """What a weights file says of its network besides the weights.

    Args:
        name: the registered model's name.
        in_shape: the network's input (channels, height, width).
        image_shape: the raw images it was trained on; larger than `in_shape` where they were cropped.
        num_classes: how many classes it tells apart.
        overrides: options it was built with, besides these.
        class_names: what the classes are called; none given are "0", "1" and so on.
        pixel_scale: what raw 0..255 pixels are multiplied with to become the network's input.
        augment: the transforms it was trained with; at test time only a crop acts, as a centre crop.
        preprocess: "none", or "gcn_zca" where whitened images are expected.
        trained_on: the data set's name; "" where that is not known.
        record: how it was made and what it reached: recipe, seed, steps, test error, versions, command.
    """

    name: str
    in_shape: tuple[int, int, int]
    image_shape: tuple[int, int, int]
    num_classes: int
    overrides: dict[str, Any] = field(default_factory=dict)
    class_names: tuple[str, ...] = ()
    pixel_scale: float = 1 / 255
    augment: tuple[str, ...] = ()
    preprocess: str = "none"
    trained_on: str = ""
    record: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.class_names:
            object.__setattr__(self, "class_names", tuple(str(number) for number in range(self.num_classes)))
        if len(self.class_names) != self.num_classes:
            raise ConfigError(
                f"class_names: expected {self.num_classes}, one for each class, or none at all, "
                f"got {len(self.class_names)}"
            )


def save_model(model: nn.Module, path: str | os.PathLike[str], info: ModelInfo) -> None:
    """Writes a network's weights and description to one safetensors file, atomically.

    A description that another network would be built from is refused: the file could never be read.
    """
    tensors = model.state_dict()
    # Names and shapes only; some initial weights are drawn all the same, which the caller is not to notice.
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        described = build_model(info.name, info.in_shape, info.num_classes, info.overrides)
    differs = _difference(described.state_dict(), tensors)
    if differs is not None:
        raise ConfigError(f"info: expected the description of this network, got that of another {info.name}: {differs}")
    write_tensors(path, "model", tensors, asdict(info))


def load_model(path: str | os.PathLike[str]) -> tuple[nn.Module, ModelInfo]:
    """Reads a network that `save_model` wrote, ready to use (in eval mode)."""
    tensors, meta = read_tensors(path, "model")
    info = info_from(meta)
    model = build_model(info.name, info.in_shape, info.num_classes, info.overrides)
    load_weights(model, tensors, what=f"{path} (a {info.name})")
    return model.eval(), info


def load_weights(model: nn.Module, tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Copies `tensors` into `model`, or says what does not fit and leaves the model as it was."""
    differs = _difference(model.state_dict(), tensors)
    if differs is not None:
        raise CheckpointError(f"{what}: {differs}: it was written for another model")
    model.load_state_dict(dict(tensors))


def _difference(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str | None:
    """The first thing in which `tensors` are not those of a model, by names and shapes; None where they are."""
    for name in dict.fromkeys((*own, *tensors)):
        if name not in own or name not in tensors:
            found = "found an unknown" if name in tensors else "found no"
            return f"expected the tensors of this model, {found} {name!r}"
        if own[name].shape != tensors[name].shape:
            return f"expected {name} of shape {tuple(own[name].shape)}, got {tuple(tensors[name].shape)}"
    return None


def pretrained_path(name: str) -> Path | None:
    """The file with the packaged weights of a model, or None where there are none."""
    path = Path(str(resources.files("purecaps.models") / "weights" / f"{name}.safetensors"))
    return path if path.is_file() else None


def load_pretrained(
    name: str, in_shape: tuple[int, int, int] | None, num_classes: int, overrides: Mapping[str, Any]
) -> tuple[nn.Module, ModelInfo]:
    """The packaged network `name`; its input, classes and weights layout are as it was trained."""
    entry = get_entry(name)
    path = pretrained_path(name)
    if path is None:
        raise ConfigError(f"pretrained: there are no packaged weights for {name!r}; train it first")
    tensors, meta = read_tensors(path, "model")
    info = info_from(meta)
    if in_shape is not None and in_shape[0] != info.in_shape[0]:
        raise ConfigError(
            f"in_shape: expected {info.in_shape[0]} channels, as the pretrained {name} has, got {in_shape[0]}"
        )
    if num_classes != info.num_classes:
        raise ConfigError(f"num_classes: expected {info.num_classes}, as the pretrained {name} has, got {num_classes}")
    model = build_model(name, in_shape or entry.in_shape, num_classes, {**info.overrides, **overrides})
    load_weights(model, tensors, what=f"the pretrained {name} with these options")
    return model.eval(), info


def info_from(meta: Mapping[str, Any]) -> ModelInfo:
    """The description that a file holds as JSON."""
    values = dict(meta)
    try:
        for name in ("in_shape", "image_shape", "class_names", "augment"):
            values[name] = tuple(values[name])
        return ModelInfo(**values)
    except (KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"expected the description of a network in the file, got {error} in it") from error
