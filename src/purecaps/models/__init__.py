"""Networks: a registry, and one file a family."""

from __future__ import annotations

from typing import Any

from torch import nn

from purecaps.models import attncaps as attncaps  # importing them registers their networks
from purecaps.models import capsnet as capsnet
from purecaps.models import cnn as cnn
from purecaps.models import dcnet as dcnet
from purecaps.models import efficient_capsnet as efficient_capsnet
from purecaps.models import idpa_capsnet as idpa_capsnet
from purecaps.models import kernel_density_capsnet as kernel_density_capsnet
from purecaps.models import matrix_capsnet as matrix_capsnet
from purecaps.models import mscaps as mscaps
from purecaps.models import packing as packing
from purecaps.models import paper as paper
from purecaps.models import residual as residual
from purecaps.models.images import check_in_shape
from purecaps.models.pcapsnet import Layer, PCapsNet
from purecaps.models.registry import build_model, list_models, register_model
from purecaps.models.store import ModelInfo, load_model, load_pretrained, save_model

__all__ = [
    "Layer",
    "ModelInfo",
    "PCapsNet",
    "create_model",
    "list_models",
    "load_model",
    "register_model",
    "save_model",
]


def create_model(
    name: str,
    *,
    in_shape: tuple[int, int, int] | None = None,
    num_classes: int = 10,
    pretrained: bool = False,
    **overrides: Any,
) -> nn.Module:
    """Builds a network by name.

    Args:
        name: one of `list_models("*")`.
        in_shape: the images' (channels, height, width); None takes what the network was made for.
        num_classes: how many classes to tell apart.
        pretrained: load the packaged weights, without network access; the model is then in eval mode.
        overrides: further options of the model's family, such as init="caffe" or squash_chunk=8 for P-CapsNets
            (see `PCapsNet`).

    Returns:
        A module: images [B, C, H, W] in [0, 1] -> class scores [B, num_classes].
    """
    if in_shape is not None:
        check_in_shape(in_shape)
    if pretrained:
        return load_pretrained(name, in_shape, num_classes, overrides)[0]
    return build_model(name, in_shape, num_classes, overrides)
