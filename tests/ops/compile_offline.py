"""Compiles the fused kernels for compute capability 9.0 on a machine without a GPU, as a program of its own.

The interpreter takes much that the compiler refuses. Launches are caught and compiled instead of run.
"""

import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from purecaps.ops.conv import empty_kernel
from purecaps.ops.triton import activation_gradient, autograd, forward, input_gradient, weight_gradient
from purecaps.ops.triton.plan import planned

TYPES = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16"}
ALIGNED = [["tt.divisibility", 16]]


class Compiled:
    """Stands in for a kernel: kernel[grid](...) compiles."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        return self.compile

    def compile(self, *args, **keywords):
        kernel, signature, constants, attributes = self.kernel, {}, {}, {}
        given = dict(zip(kernel.arg_names, args, strict=False)) | keywords
        for index, parameter in enumerate(kernel.params):
            value = given.pop(parameter.name)
            if parameter.is_constexpr:
                signature[parameter.name], constants[(index,)] = "constexpr", value
            elif isinstance(value, torch.Tensor):
                signature[parameter.name], attributes[(index,)] = TYPES[value.dtype], ALIGNED
            else:
                signature[parameter.name] = "fp32" if isinstance(value, float) else "i32"
                if value % 16 == 0 and not parameter.do_not_specialize:
                    attributes[(index,)] = ALIGNED
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=given)
        sys.stdout.write(f"{kernel.__name__} {made.metadata.shared}\n")


for module, name in (
    (forward, "forward_kernel"),
    (activation_gradient, "activation_gradient_kernel"),
    (input_gradient, "input_gradient_kernel"),
    (weight_gradient, "weight_gradient_kernel"),
    (weight_gradient, "sum_parts_kernel"),
):
    setattr(module, name, Compiled(getattr(module, name)))

for dtype, precision, padding in ((torch.float32, "tf32", 0), (torch.bfloat16, "ieee", 1)):
    u = torch.zeros(40, 11, 11, 4, 4, 16, dtype=dtype).permute(0, 4, 1, 2, 3, 5)[None]
    w = empty_kernel((3, 3, 4, 8, 1, 16, 8)).to(dtype)[None]
    block = ([2, 2, padding, padding, 1, 1], [4, 8], 0.1, precision)
    y, r = autograd.block_forward(u, w, *block)
    for fused in (True, False):
        with planned(fused=fused):
            autograd.block_backward(y, r, u, w, y, r, *block, True, True)
