"""Layers that have to be called as modules, since somebody watches them."""

from __future__ import annotations

from torch import nn
from torch.nn.modules import module as modules


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
