"""Layers that have to be called as modules, since somebody watches them or has changed what they compute."""

from __future__ import annotations

from typing import TypeGuard, TypeVar

from torch import nn
from torch.nn.modules import module as modules

M = TypeVar("M", bound=nn.Module)


def is_hooked(module: nn.Module) -> bool:
    """Whether a hook would be passed over if what the module computes were computed without calling it.

    Not a watcher's alone: torch's pruning, and weight and spectral norm as they were, set the weight in such a hook.
    """
    own = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    of_all = (
        modules._global_forward_hooks
        or modules._global_forward_pre_hooks
        or modules._global_backward_hooks
        or modules._global_backward_pre_hooks
    )
    return bool(own or of_all)


def computes_as(module: nn.Module, kind: type[M]) -> TypeGuard[M]:
    """Whether a module's forward is that of a class: not a subclass's or another module's, nor one put in its place."""
    return isinstance(module, kind) and type(module).forward is kind.forward and "forward" not in module.__dict__
