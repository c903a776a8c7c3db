"""Where the maps of a network lie in one block of memory, so that the block is small.

A layer reads one map and writes the next. Even layers read from the end of the block and write from its start, capsule
by capsule; odd ones go backwards, from the start to the end. So the output grows into the place of input that no later
capsule reads, and the two overlap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from purecaps.models.sizes import LayerSizes


def arena_size(layers: Sequence[LayerSizes], *, last_is_kept: bool) -> int:
    """The smallest block, in numbers, in which no layer overwrites what it has yet to read.

    Args:
        layers: first to last.
        last_is_kept: whether the last layer writes its map into the block too.
    """
    writing = layers if last_is_kept else layers[:-1]
    needs = [_needed(layer, backwards=index % 2 == 1) for index, layer in enumerate(writing)]
    return max([*needs, layers[-1].in_numbers, layers[0].in_numbers])


def _needed(layer: LayerSizes, *, backwards: bool) -> int:
    rows, columns = (
        np.arange(size) * stride - padding
        for size, stride, padding in zip(layer.out_size, layer.stride, layer.padding, strict=True)
    )
    in_h, in_w = layer.in_size
    if backwards:
        rows, columns = rows + layer.kernel[0] - 1, columns + layer.kernel[1] - 1
    read = (rows.clip(0, in_h - 1)[:, None] * in_w + columns.clip(0, in_w - 1)[None, :]).reshape(-1)
    if backwards:
        read = (in_h * in_w - 1 - read)[::-1]  # the mirror image: positions and memory both seen from the end
    # Input before `free` is read neither at a position nor at any later one; after the last, none is.
    free = np.append(np.minimum.accumulate(read[::-1])[::-1], in_h * in_w) * layer.in_capsules
    written = np.arange(1, len(read) + 1) * layer.out_capsules
    # A position's last capsule is written when its input has been read; those before it while it is still needed.
    overlap = written - free[1:]
    if layer.O > 1:
        overlap = np.maximum(overlap, written - layer.capsule - free[:-1])
    return int(overlap.max()) + layer.in_numbers
