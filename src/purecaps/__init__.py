"""Routing-free capsule networks: layers, networks, training and deployment."""

from purecaps import data, losses, nn, ops
from purecaps._version import __version__
from purecaps.models import Layer, PCapsNet, create_model, list_models, load_model, save_model

__all__ = [
    "Layer",
    "PCapsNet",
    "__version__",
    "create_model",
    "data",
    "list_models",
    "load_model",
    "losses",
    "nn",
    "ops",
    "save_model",
]
