"""Compiles the fused network for compute capability 9.0 on a machine without a GPU, as a program of its own.

Prints the name of each network that it is given, the shared memory that a program of it takes, and how many tensors its
loop over rows hands on from one turn to the next.
"""

import re
import sys

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from purecaps import create_model
from purecaps.inference import _stages
from purecaps.ops.triton import network
from purecaps.ops.triton.bands import make_bands

TYPES = {
    "images_ptr": "*u8",
    "scale_ptr": "*fp32",
    "shift_ptr": "*fp32",
    "out_ptr": "*i64",
    "batch": "i32",
    "zero": "i32",
}
TYPES["slope"] = "fp32"

for net in sys.argv[1:]:
    model = create_model(net)
    bands = make_bands(_stages(model), model.in_shape, torch.float16)
    chosen = network.plan(bands)
    given = network.constants(bands) | {f"HOLD{layer}": layer in chosen.hold for layer in (1, 2, 3, 4)}
    given |= {"IMAGES": chosen.images, "CLASS": True, "PRECISION": "ieee"}
    kernel, signature, constants, attributes = network.network_kernel, {}, {}, {}
    for index, parameter in enumerate(kernel.params):
        if parameter.is_constexpr:
            signature[parameter.name], constants[(index,)] = "constexpr", given[parameter.name]
        else:
            signature[parameter.name] = TYPES.get(parameter.name, "*fp16")
            if parameter.name.endswith("_ptr"):
                attributes[(index,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    options = {"num_warps": chosen.warps, "num_stages": 1}
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    # The loop over blocks of images hands on nothing, that over rows everything.
    loop = next(line for line in made.asm["ttir"].splitlines() if "scf.for" in line and "iter_args" in line)
    carried = len(re.findall(r"tensor<", loop.split("->")[1]))
    sys.stdout.write(f"{net} {made.metadata.shared} {carried}\n")
