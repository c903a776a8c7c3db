"""Capsule layers as torch modules."""

from purecaps.nn.conv import CapsBlock, CapsConv2d
from purecaps.nn.head import LengthHead

__all__ = ["CapsBlock", "CapsConv2d", "LengthHead"]
