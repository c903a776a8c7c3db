"""Compiles the fused kernels for compute capability 9.0 on a machine without a GPU, as a program of its own."""

import re
import sys

import torch

from purecaps.data import Split, batch_kernel
from purecaps.data.loader import DeviceLoader
from purecaps.data.transforms import parse
from purecaps.ops.conv import empty_kernel
from purecaps.ops.geometry import Geometry
from purecaps.ops.triton import (
    activation_gradient,
    ahead,
    autograd,
    forward,
    input_gradient,
    kernel_copies,
    length_loss,
    length_loss_kernel,
    stack,
    sum_parts,
    weight_gradient,
)
from purecaps.ops.triton.offline import catch
from purecaps.ops.triton.plan import planned
from purecaps.ops.triton.tile import Tile
from purecaps.train import adam_kernel, tally_kernel


def tell(each):
    """A kernel's name, its shared memory, whether it is launched ahead and whether it waits before it touches memory."""
    metadata, code = each.made.metadata, each.made.asm["ptx"]
    code = code[code.index("{", code.index(".entry")) :]
    touched = re.search(r"(ld|st|atom|red)\.global|cp\.async", code)
    waits = -1 < code.find("griddepcontrol.wait") < touched.start()
    sys.stdout.write(f"{each.name} {metadata.shared} {metadata.launch_pdl:d} {waits:d}\n")


for module, name in (
    (forward, "forward_kernel"),
    (activation_gradient, "activation_gradient_kernel"),
    (input_gradient, "input_gradient_kernel"),
    (weight_gradient, "weight_gradient_kernel"),
    (sum_parts, "sum_parts_kernel"),
    (kernel_copies, "kernel_copies_kernel"),
    (length_loss_kernel, "length_loss_kernel"),
    (batch_kernel, "batch_kernel"),
    (adam_kernel, "adam_kernel"),
    (tally_kernel, "tally_kernel"),
):
    catch(module, name, tell)
ahead._knows = lambda device: True

for dtype, precision, padding in ((torch.float32, "tf32", 0), (torch.bfloat16, "ieee", 1)):
    u = torch.zeros(40, 11, 11, 4, 4, 16, dtype=dtype).permute(0, 4, 1, 2, 3, 5)[None]
    w = empty_kernel((3, 3, 4, 8, 1, 16, 8)).to(dtype)[None]
    block = ([2, 2, padding, padding, 1, 1], [4, 8], 0.1, precision)
    y, r = autograd.block_forward(u, w, *block)
    autograd.block_backward(y, r, u, w, y, r, *block, True, True)
    side_by_side = Tile(64, 32, 16, span=4)
    with planned(forward=side_by_side, inputs=side_by_side):
        y, r = autograd.block_forward(u, w, *block)
        autograd.block_backward(y, r, u, w, y, r, *block, True, True)

first, second = empty_kernel((3, 3, 1, 4, 1, 3, 16))[None], empty_kernel((3, 3, 4, 3, 1, 16, 4))[None]
layers = [
    stack.Layer(Geometry((2, 2)), (1, 8), (0, 0), 0.1),
    stack.Layer(Geometry(), (1, 4), (1, 8), 0.1),
]
for dtype in (torch.float32, torch.bfloat16):
    u = torch.zeros(1, 5, 1, 12, 12, 1, 3, dtype=dtype)
    encoded = stack.encoded(layers)
    outputs = stack.stack_forward(u, [first, second], *encoded, "tf32", True)
    stack.stack_backward(outputs[1], None, u, [first, second], outputs, *encoded, "tf32", True)


def compile_loss(margin):
    length_loss.length_loss(torch.zeros(2, 5, 10, 2, 1), torch.zeros(2, 5, dtype=torch.int64), margin, [0.5, 0.1, 0.5])


compile_loss(margin=False)
compile_loss(margin=True)

split = Split(torch.zeros(20, 3, 9, 8, dtype=torch.uint8), torch.zeros(20, dtype=torch.int64))
for specs in (("affine:degrees=5", "shift:1", "flip"), ("crop:7,padding=1", "cutout:2")):
    loader = DeviceLoader(split, 4, seed=(1, 2), augment=parse(specs))
    loader._take_fused(loader.epoch_order(0), torch.tensor(3), *loader._kernel_plan)

weights, counts = [torch.zeros(700), torch.zeros(3, 4)], [torch.tensor(1.0), torch.tensor(1.0)]
ticket = torch.tensor(0, dtype=torch.int32)
adam_kernel.launch_adam(weights, weights, weights, weights, counts, ticket, torch.tensor(0.1), (0.9, 0.999), 1e-8, 0.1)
losses, mistakes, step = torch.zeros(10, 3), torch.zeros(3, dtype=torch.int64), torch.tensor(0)
tally_kernel.launch_tally(losses[0], mistakes, losses, mistakes, step, torch.tensor(0.1), torch.zeros(5))


def require_no_short_products(kernel):
    found = re.findall(r"\b(?:mul|mad|div|rem)\.[a-z.]*[su]16\b", kernel.made.asm["ptx"])
    assert not found, (
        f"{kernel.name}: expected no products of 16 bits, of which ptxas 12.8 gets some wrong, got {found}"
    )


for kernel in (
    forward.forward_kernel,
    input_gradient.input_gradient_kernel,
    weight_gradient.weight_gradient_kernel,
    sum_parts.sum_parts_kernel,
    batch_kernel.batch_kernel,
):
    kernel.tell = require_no_short_products

# Widths, capsules, kernels, strides and dilations that are no powers of two; one image, so several pixels in a tile.
for images, size, (kh, kw, C, n, p), stride, dilation in (
    (128, 11, (3, 3, 1, 3, 2), 1, 1),
    (128, 11, (3, 3, 1, 7, 5), 1, 1),
    (128, 11, (5, 5, 3, 4, 4), 3, 1),
    (1, 7, (3, 3, 5, 2, 2), 1, 1),
    (96, 17, (3, 3, 3, 5, 3), 1, 3),
):
    u = torch.zeros(1, images, size, size, 2, C, n).permute(0, 1, 5, 2, 3, 4, 6)
    w = torch.zeros(1, kh, kw, C, 2, 1, n, p)
    block = ([stride, stride, 0, 0, dilation, dilation], [2, p], 0.1, "tf32")
    y, r = autograd.block_forward(u, w, *block)
    autograd.block_backward(y, r, u, w, y, r, *block, True, True)

odd = empty_kernel((3, 3, 1, 5, 1, 3, 6))[None]
sum_parts.sum_turned_parts(torch.zeros(7, odd.numel()), odd)

loader = DeviceLoader(Split(torch.zeros(2, 3, 96, 96, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)), 2, seed=1)
loader._take_fused(loader.epoch_order(0), torch.tensor(0), *loader._kernel_plan)


def require_nan_in_margins(kernel):
    found = re.findall(r"\bmax\.\S*f32\b", kernel.made.asm["ptx"])
    assert "max.NaN.f32" in found, f"expected margins that keep NaN, got {sorted(set(found))}"


length_loss_kernel.length_loss_kernel.tell = require_nan_in_margins
compile_loss(margin=True)


def require_wide_copies(kernel):
    assert "cp.async.ca" not in kernel.made.asm["ptx"], "expected copies of 16 bytes, rows are of 10 x 16 numbers"


forward.forward_kernel.tell = require_wide_copies
u, w = torch.zeros(1, 64, 3, 3, 4, 10, 16).permute(0, 1, 5, 2, 3, 4, 6), empty_kernel((3, 3, 10, 10, 1, 16, 16))[None]
with planned(forward=Tile(64, 32, 128, 8, 3)):  # steps of 128 numbers, which do not divide a row
    autograd.block_forward(u, w, [1, 1, 0, 0, 1, 1], [4, 16], 0.1, "tf32")
