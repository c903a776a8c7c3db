# mypy: disable-error-code="import-untyped,import-not-found"
"""Kernels compiled for a GPU that is not there: launches are caught and compiled instead of run.

The interpreter takes much that the compiler refuses, and a compiled kernel tells what it costs: the instructions that
its warps issue are what most kernels here are bound by, and counting them needs no GPU.
"""

from __future__ import annotations

import math
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
}
ALIGNED = [["tt.divisibility", 16]]


@dataclass(frozen=True)
class Compiled:
    """A kernel as it would have been launched.

    Args:
        name: of its function.
        programs: that the launch asked for.
        warps: of a program.
        made: what the compiler made of it.
    """

    name: str
    programs: int
    warps: int
    made: Any

    def instructions(self) -> tuple[int, int]:
        """Of the longest loop, and outside of it; what an unrolled loop has become counts as outside."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "kernel.cubin"
            path.write_bytes(self.made.asm["cubin"])
            tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
            listing = subprocess.run([tool, "--dump-sass", path], capture_output=True, text=True, check=True).stdout
        found = [
            (int(match[1], 16), match[2])
            for match in re.finditer(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", listing, re.MULTILINE)
            if "NOP" not in match[2]
        ]
        jumps = [
            (int(match[1], 16), at) for at, text in found if (match := re.search(r"BRA\S* .*?0x([0-9a-f]+)", text))
        ]
        first, last = max(
            ((to, at) for to, at in jumps if to < at), key=lambda jump: jump[1] - jump[0], default=(0, -1)
        )
        inside = sum(first <= at <= last for at, _ in found)
        return inside, len(found) - inside


class Catcher:
    """Stands in for a kernel: kernel[grid](...) compiles and hands on what came of it.

    Args:
        kernel: the function that it stands in for.
        tell: told of every launch.
    """

    def __init__(self, kernel: Any, tell: Callable[[Compiled], None]) -> None:
        self.kernel, self.tell = kernel, tell

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *args, **keywords: self.tell(self._compiled(math.prod(grid), args, keywords))

    def _compiled(self, programs: int, args: tuple[Any, ...], keywords: dict[str, Any]) -> Compiled:
        kernel = self.kernel
        signature: dict[str, Any] = {}
        constants, attributes = {}, {}
        given = dict(zip(kernel.arg_names, args, strict=False)) | keywords
        for index, parameter in enumerate(kernel.params):
            value = given.pop(parameter.name)
            if parameter.is_constexpr:
                signature[parameter.name], constants[(index,)] = "constexpr", value
            elif isinstance(value, tuple):
                signature[parameter.name] = tuple(TYPES[each.dtype] for each in value)
            elif isinstance(value, torch.Tensor):
                signature[parameter.name], attributes[(index,)] = TYPES[value.dtype], ALIGNED
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
                if value % 16 == 0 and not parameter.do_not_specialize:
                    attributes[(index,)] = ALIGNED
        made = triton.compile(ASTSource(kernel, signature, constants, attributes), target=TARGET, options=given)
        return Compiled(kernel.__name__, programs, given.get("num_warps", 4), made)


def catch(module: ModuleType, name: str, tell: Callable[[Compiled], None]) -> None:
    """Replaces a kernel of a module for good: in a process of its own."""
    setattr(module, name, Catcher(getattr(module, name), tell))
