"""The mathematics of capsule convolutions: plain functions on tensors."""

from purecaps.ops.api import caps_block, caps_conv2d, refold, squash

__all__ = ["caps_block", "caps_conv2d", "refold", "squash"]
