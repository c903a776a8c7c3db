"""Routing-free capsule networks: layers, networks, training and deployment."""

import os

# A capsule layer on a CPU is many short parallel loops. By default OpenMP's threads spin for milliseconds at the end of
# each, so that another busy program makes training up to ten times slower; spinning for microseconds costs a tenth.
# It is read when torch is imported, and whoever has set either knows better.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")

from purecaps import data, losses, nn, ops
from purecaps._version import __version__
from purecaps.inference import compile_inference
from purecaps.models import Layer, PCapsNet, create_model, list_models, load_model, save_model

__all__ = [
    "Layer",
    "PCapsNet",
    "__version__",
    "compile_inference",
    "create_model",
    "data",
    "list_models",
    "load_model",
    "losses",
    "nn",
    "ops",
    "save_model",
]
