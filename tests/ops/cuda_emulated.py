"""Kernels in CUDA C++ on the CPU: their text, with an emulator's primitives, through the C++ compiler."""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from purecaps.ops.cuda.layout import Layout
from purecaps.ops.cuda.two_layers import TwoLayers

EMULATOR = Path(__file__).with_name("cuda_emulator.h")
BLOCKS, WARPS = 2, 2
SHARED = 227 * 1024  # as on Hopper
NAN = float("nan")
NETWORK_ENTRY = """
extern "C" void launch(const PIXEL* images, const u32* weights, const float* bias, OUTPUT* out, int batch,
                       float slope, int blocks) {
    static struct {
        const PIXEL* images; const u32* weights; const float* bias; OUTPUT* out; int batch; float slope;
    } given;
    given = {images, weights, bias, out, batch, slope};
    void (*kernel)() = [] {
        network(given.images, given.weights, given.bias, given.out, given.batch, given.slope);
    };
    emulator::run(kernel, 32 * WARPS, 4 * LAST_WEIGHTS + WARPS * WARP_BYTES, blocks);
}
"""


TWO_LAYERS_ENTRY = """
extern "C" void launch(const Number* gradient_out, const Number* weights, const Number* input, const float* lengths,
                       const Number* images, Number* gradient, float* parts, float* first_parts, int batch, int blocks,
                       float slope, int grid) {
    static struct {
        const Number *gradient_out, *weights, *input;
        const float* lengths;
        const Number* images;
        Number* gradient;
        float *parts, *first_parts;
        int batch, blocks;
        float slope;
    } given;
    given = {gradient_out, weights, input, lengths, images, gradient, parts, first_parts, batch, blocks, slope};
    void (*kernel)() = [] {
        two_layers_backward(given.gradient_out, given.weights, given.input, given.lengths, given.images, given.gradient,
                            given.parts, given.first_parts, given.batch, given.blocks, given.slope);
    };
    emulator::run(kernel, THREADS, 4 * SHARED_FLOATS, grid);
}
"""


def emulated_two_layers(layers: TwoLayers, blocks: int, *arguments: torch.Tensor | int | float) -> None:
    """As purecaps.ops.cuda.two_layers.launch, on the CPU."""
    *tensors, batch, per_network, slope = arguments
    library = library_of(layers.source(), TWO_LAYERS_ENTRY)
    pointers = (ctypes.c_void_p(each.data_ptr()) for each in tensors)
    library.launch(*pointers, batch, per_network, ctypes.c_float(slope), blocks * layers.second.Z)


class EmulatedNetwork:
    """As purecaps.ops.cuda.network.Network, on the CPU."""

    def __init__(self, layout: Layout, *, classes_out: bool) -> None:
        self._layout, self._classes_out = layout, classes_out

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        bytes_in, layout = images.dtype == torch.uint8, self._layout
        # Poisoned: the kernel writes every element.
        out = torch.full((len(images),), -7) if self._classes_out else torch.full((len(images), layout.classes), NAN)
        images = images.contiguous() if bytes_in else images.float().contiguous()
        tensors = (ctypes.c_void_p(each.data_ptr()) for each in (images, layout.weights, layout.bias, out))
        library = library_of(layout.source(WARPS, bytes_in=bytes_in, classes_out=self._classes_out), NETWORK_ENTRY)
        library.launch(*tensors, len(images), ctypes.c_float(layout.slope), BLOCKS)
        return out


@functools.cache
def library_of(source: str, entry: str) -> ctypes.CDLL:
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    # The emulator before the text, and what the text is given before both.
    known, text = source.split("\n\n", 1)[0], source
    defines = "\n".join(line for line in known.splitlines() if line == "#define BFLOAT16")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.cpp"
        path.write_text("\n".join([defines, EMULATOR.read_text(), text.replace("#define BFLOAT16", ""), entry]))
        options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wno-unknown-pragmas"]
        subprocess.run([compiler, *options, "-o", path.with_suffix(".so"), path], check=True)
        return ctypes.CDLL(str(path.with_suffix(".so")))
