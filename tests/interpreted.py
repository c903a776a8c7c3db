"""Where tests run the Triton kernels: compiled on a GPU, or by Triton's interpreter on the CPU.

A process has either interpreted or compiled kernels: what @triton.jit makes is decided on import. So a module that
tests kernels imports this one first, while tests are collected, and asks for the fixture `kernels`.
"""

import importlib.util
import os
import sys

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)
if DEVICE == "cpu":
    if "triton" in sys.modules:
        raise RuntimeError("expected to import Triton first, in interpreter mode; it was imported before")
    os.environ["TRITON_INTERPRET"] = "1"
    import triton.runtime.interpreter as interpreter

    import purecaps.data.batch_kernel
    import purecaps.ops.triton.input_gradient
    import purecaps.ops.triton.length_loss_kernel
    import purecaps.ops.triton.weight_gradient
    import purecaps.train.adam_kernel
    import purecaps.train.tally_kernel  # noqa: F401

    # Tests of other modules in this process are not to find an implementation for the CPU.
    del os.environ["TRITON_INTERPRET"]


def set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interpreter mode where there is no GPU, and memory that is wrong until a kernel writes it."""
    from purecaps.ops.triton import memory

    def poisoned(shape, dtype, device):
        return torch.full(shape, float("nan") if dtype.is_floating_point else -7, dtype=dtype, device=device)

    monkeypatch.setattr(memory, "empty", poisoned)
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        patch_tensor = interpreter._patch_lang_tensor

        def patch_with_index(tensor, scope):
            # Triton 3.6 converts arrays of one element to int, which NumPy 2.4 no longer does.
            patch_tensor(tensor, scope)
            scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

        monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch_with_index)
        # Blocks as for a GPU of this many processors: an interpreted program costs as much whatever its size.
        monkeypatch.setattr("purecaps.ops.triton.plan.FILL", 3)
