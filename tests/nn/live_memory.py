"""What a computation keeps and needs: bytes saved for the backward pass, and the most bytes alive at once."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class PeakMemory(TorchDispatchMode):
    """Follows every storage that an operation makes until it is freed; `peak` is the most bytes at one time.

    Temporaries inside one operation are not seen.
    """

    def __init__(self):
        super().__init__()
        self.alive = self.peak = 0
        self._known = weakref.WeakKeyDictionary()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor):
                self._follow(tensor.untyped_storage())
        return result

    def _follow(self, storage):
        if storage in self._known:
            return
        self._known[storage] = True
        self.alive += storage.nbytes()
        self.peak = max(self.peak, self.alive)
        weakref.finalize(storage, self._free, storage.nbytes())

    def _free(self, size):
        self.alive -= size


def saved_bytes(run):
    """Bytes of all storages that autograd keeps of `run()`, and its result, which keeps them alive."""
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    return sum(kept.values()), result
