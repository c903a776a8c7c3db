"""Capsule layers as torch modules."""

from purecaps.nn.conv import CapsBlock, CapsConv2d
from purecaps.nn.head import LengthHead
from purecaps.nn.primary import PrimaryCapsules, to_capsules
from purecaps.nn.routed import ConvCapsules, FullyConnectedCapsules

__all__ = [
    "CapsBlock",
    "CapsConv2d",
    "ConvCapsules",
    "FullyConnectedCapsules",
    "LengthHead",
    "PrimaryCapsules",
    "to_capsules",
]
