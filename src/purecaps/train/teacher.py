"""Distillation: a trained network whose opinion of the images is part of what another one is to answer."""

from __future__ import annotations

import copy
import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from purecaps.data.transforms import parse
from purecaps.errors import ConfigError
from purecaps.losses import LENGTH_SCALE
from purecaps.models.guided import has_lengths
from purecaps.models.registry import list_models
from purecaps.models.store import ModelInfo, load_model, load_pretrained
from purecaps.train.recipe import Recipe

log = logging.getLogger("purecaps.train")


class Teacher:
    """A trained network as it is asked in training: unchanging, without gradients, in bfloat16 on a GPU.

    Args:
        network: images [B, C, H, W] -> scores [B, K]; it is copied.
        device: where it is asked.
        compile: whether it goes through torch.compile.
    """

    def __init__(self, network: nn.Module, device: torch.device, *, compile: bool = False) -> None:
        network = copy.deepcopy(network).to(device).eval().requires_grad_(False)
        self.network, self.digest = network, digest_of(network)
        # The softmax of lengths as they are, all in [0, 1), would be next to no opinion.
        self.scale = LENGTH_SCALE if has_lengths(network) else 1.0
        if device.type == "cuda":
            for module in network.modules():
                if isinstance(module, nn.Conv2d):  # the layout of cuDNN's fastest kernels, which maps then take on
                    module.weight.data = module.weight.to(memory_format=torch.channels_last)
        self._scores = torch.compile(network, dynamic=False) if compile else network

    @torch.no_grad()
    def opinion(self, images: Tensor, temperature: float) -> Tensor:
        """Class probabilities [(S,) B, K] of images [(S,) B, C, H, W]; it can be captured in a CUDA graph."""
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda, cache_enabled=False):
            scores: Tensor = self._scores(images.flatten(0, -4))
        opinion: Tensor = (scores.float() * (self.scale / temperature)).softmax(dim=-1)
        return opinion.view(*images.shape[:-3], -1)


def is_packaged(name: str | os.PathLike[str]) -> bool:
    """Whether a network is named as a packaged model; a file or folder of that name comes first."""
    return str(name) in list_models() and not Path(name).exists()


def load_teacher(path: str | os.PathLike[str], recipe: Recipe) -> tuple[nn.Module, ModelInfo]:
    """Reads a saved or packaged network to learn from by a recipe, whose images must be what it was trained on.

    Args:
        path: a weights file, or a packaged model's name.
        recipe: the pupil's.
    """
    network, info = load_pretrained(str(path), None, 10, {}) if is_packaged(path) else load_model(path)
    # Channels that preprocess standardises are the network's own affair: with and without, it takes the same images.
    # The transform of that name makes other images of them, in training and at test.
    for what, its, ours in (
        ("preprocess gcn_zca", info.preprocess == "gcn_zca", recipe.preprocess == "gcn_zca"),
        ("augment standardise", _standardises(info.augment), _standardises(recipe.augment)),
        ("pixel_scale", info.pixel_scale, recipe.pixel_scale),
    ):
        if its != ours:
            raise ConfigError(
                f"teacher: expected a network trained with {what} {_text(ours)}, as the recipe has, "
                f"got {path} with {_text(its)}"
            )
    _check_held_out(path, info, recipe)
    return network, info


def _check_held_out(path: str | os.PathLike[str], info: ModelInfo, recipe: Recipe) -> None:
    """A teacher that was trained on the images that its pupil is judged by would tell it of them."""
    held = info.record.get("val_size")
    if held is None:
        if recipe.val_size:
            log.warning(
                "teacher: %s does not say how many images it held out; where it was trained on the %d that this run "
                "holds out, validation errors flatter the pupil",
                path,
                recipe.val_size,
            )
    elif held != recipe.val_size:
        raise ConfigError(
            f"teacher: expected a network trained with val_size {recipe.val_size}, as the recipe has, so that it has "
            f"not seen the images held out here, got {path} with {held}"
        )


def require_teacher(
    network: nn.Module | None, recipe: Recipe, in_shape: tuple[int, int, int], num_classes: int
) -> None:
    """Refuses a teacher that does not fit a run, one that would not be asked, and to do without one that would be."""
    if network is None:
        if recipe.teacher_share:
            raise ConfigError(f"teacher: expected a network with teacher_share {recipe.teacher_share}, got none")
        return
    if not recipe.teacher_share:
        raise ConfigError(f"teacher_share: expected a number above 0 with a teacher, got {recipe.teacher_share}")
    for name, ours in (("in_shape", in_shape), ("num_classes", num_classes)):
        its = getattr(network, name, None)
        if its != ours:
            raise ConfigError(f"teacher: expected a network of {name} {ours}, as the run has, got one of {its}")


def digest_of(network: nn.Module) -> str:
    """What tells a network's weights from another's, wherever they lie."""
    state = hashlib.sha256()
    for name, tensor in network.state_dict().items():
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        state.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return state.hexdigest()


def _standardises(augment: Sequence[str]) -> bool:
    return not parse(augment).crops_only_at_test


def _text(value: float) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else f"{value:g}"
