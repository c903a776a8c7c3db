"""Block sizes that were measured to be the fastest for the layers of the paper's networks.

Made with benchmarks/tune.py on an H200 (Triton 3.6), batch 128 and 256 for pcapsnet4, in TF32 and bfloat16. Layers
that are not here, and much smaller batches, go by the rules in plan.py, which were read off this table. TUNED_MANY is
for networks side by side (ten of pcapsnet2, batch 128, TF32). Left out until they have been held against others on a
GPU: weight gradients of many, and pixels side by side, whose kernels have changed since they were timed.
"""

from __future__ import annotations

from purecaps.ops.triton.tile import Tile

# kernel, bytes of a number, C, n, O, p, height of the input map, stride
Key = tuple[str, int, int, int, int, int, int, int]

# -> tile, programs that share a weight gradient
TUNED: dict[Key, tuple[Tile, int]] = {
    ("forward", 2, 1, 1, 1, 32, 28, 2): (Tile(64, 32, 16, 4, 1), 0),
    ("forward", 2, 1, 8, 4, 16, 13, 1): (Tile(64, 64, 128, 4, 1), 0),
    ("forward", 2, 4, 16, 8, 8, 11, 2): (Tile(64, 64, 64, 4, 3), 0),
    ("forward", 2, 8, 8, 4, 16, 5, 1): (Tile(64, 64, 64, 4, 4), 0),
    ("forward", 2, 4, 16, 10, 16, 3, 1): (Tile(16, 32, 64, 4, 3), 0),
    ("forward", 2, 1, 3, 1, 32, 24, 2): (Tile(64, 32, 32, 2, 1), 0),
    ("forward", 2, 1, 8, 4, 16, 11, 1): (Tile(64, 64, 128, 4, 1), 0),
    ("forward", 2, 4, 16, 8, 8, 9, 1): (Tile(128, 64, 64, 4, 3), 0),
    ("forward", 2, 8, 8, 10, 16, 7, 2): (Tile(128, 32, 64, 4, 3), 0),
    ("forward", 2, 10, 16, 10, 16, 3, 1): (Tile(64, 32, 64, 4, 3), 0),
    ("forward", 4, 1, 1, 1, 32, 28, 2): (Tile(64, 32, 16, 2, 1), 0),
    ("forward", 4, 1, 8, 4, 16, 13, 1): (Tile(256, 64, 16, 4, 2), 0),
    ("forward", 4, 4, 16, 8, 8, 11, 2): (Tile(128, 64, 32, 8, 4), 0),
    ("forward", 4, 8, 8, 4, 16, 5, 1): (Tile(64, 64, 32, 8, 3), 0),
    ("forward", 4, 4, 16, 10, 16, 3, 1): (Tile(16, 32, 32, 4, 3), 0),
    ("forward", 4, 1, 1, 1, 16, 28, 2): (Tile(64, 16, 16, 2, 1), 0),
    ("forward", 4, 1, 4, 1, 8, 13, 1): (Tile(256, 16, 64, 8, 1), 0),
    ("forward", 4, 1, 8, 1, 4, 11, 2): (Tile(64, 16, 16, 4, 3), 0),
    ("forward", 4, 1, 4, 1, 8, 5, 1): (Tile(64, 16, 32, 4, 4), 0),
    ("forward", 4, 1, 8, 10, 4, 3, 1): (Tile(16, 16, 32, 4, 3), 0),
    ("forward", 4, 1, 3, 1, 32, 24, 2): (Tile(64, 32, 32, 2, 1), 0),
    ("forward", 4, 1, 8, 4, 16, 11, 1): (Tile(128, 64, 16, 8, 4), 0),
    ("forward", 4, 4, 16, 8, 8, 9, 1): (Tile(128, 64, 32, 4, 3), 0),
    ("forward", 4, 8, 8, 10, 16, 7, 2): (Tile(128, 32, 32, 4, 3), 0),
    ("forward", 4, 10, 16, 10, 16, 3, 1): (Tile(64, 32, 128, 8, 3), 0),
    ("inputs", 2, 1, 8, 4, 16, 13, 1): (Tile(128, 16, 32, 4, 3), 0),
    ("inputs", 2, 4, 16, 8, 8, 11, 2): (Tile(128, 64, 32, 4, 2), 0),
    ("inputs", 2, 8, 8, 4, 16, 5, 1): (Tile(64, 64, 64, 4, 3), 0),
    ("inputs", 2, 4, 16, 10, 16, 3, 1): (Tile(32, 64, 64, 4, 3), 0),
    ("inputs", 2, 1, 8, 4, 16, 11, 1): (Tile(128, 16, 64, 4, 3), 0),
    ("inputs", 2, 4, 16, 8, 8, 9, 1): (Tile(128, 64, 64, 4, 3), 0),
    ("inputs", 2, 8, 8, 10, 16, 7, 2): (Tile(64, 64, 32, 4, 3), 0),
    ("inputs", 2, 10, 16, 10, 16, 3, 1): (Tile(64, 64, 32, 2, 3), 0),
    ("inputs", 4, 1, 8, 4, 16, 13, 1): (Tile(64, 16, 32, 4, 2), 0),
    ("inputs", 4, 4, 16, 8, 8, 11, 2): (Tile(128, 64, 32, 4, 2), 0),
    ("inputs", 4, 8, 8, 4, 16, 5, 1): (Tile(64, 64, 32, 4, 3), 0),
    ("inputs", 4, 4, 16, 10, 16, 3, 1): (Tile(32, 64, 32, 4, 3), 0),
    ("inputs", 4, 1, 4, 1, 8, 13, 1): (Tile(128, 16, 16, 4, 3), 0),
    ("inputs", 4, 1, 8, 1, 4, 11, 2): (Tile(64, 16, 16, 2, 1), 0),
    ("inputs", 4, 1, 4, 1, 8, 5, 1): (Tile(64, 16, 16, 4, 3), 0),
    ("inputs", 4, 1, 8, 10, 4, 3, 1): (Tile(32, 16, 32, 4, 3), 0),
    ("inputs", 4, 1, 8, 4, 16, 11, 1): (Tile(64, 16, 32, 4, 3), 0),
    ("inputs", 4, 4, 16, 8, 8, 9, 1): (Tile(128, 64, 32, 4, 3), 0),
    ("inputs", 4, 8, 8, 10, 16, 7, 2): (Tile(128, 64, 32, 4, 3), 0),
    ("inputs", 4, 10, 16, 10, 16, 3, 1): (Tile(128, 32, 32, 2, 2), 0),
    ("weights", 2, 1, 1, 1, 32, 28, 2): (Tile(16, 32, 256, 2, 1), 85),
    ("weights", 2, 1, 8, 4, 16, 13, 1): (Tile(64, 64, 256, 8, 1), 264),
    ("weights", 2, 4, 16, 8, 8, 11, 2): (Tile(64, 64, 128, 8, 2), 261),
    ("weights", 2, 8, 8, 4, 16, 5, 1): (Tile(64, 64, 128, 8, 3), 126),
    ("weights", 2, 4, 16, 10, 16, 3, 1): (Tile(64, 32, 128, 4, 2), 45),
    ("weights", 2, 1, 3, 1, 32, 24, 2): (Tile(32, 32, 128, 4, 2), 132),
    ("weights", 2, 1, 8, 4, 16, 11, 1): (Tile(128, 64, 128, 4, 2), 264),
    ("weights", 2, 4, 16, 8, 8, 9, 1): (Tile(64, 64, 128, 8, 2), 261),
    ("weights", 2, 8, 8, 10, 16, 7, 2): (Tile(64, 32, 128, 4, 2), 495),
    ("weights", 2, 10, 16, 10, 16, 3, 1): (Tile(64, 32, 128, 4, 2), 115),
    ("weights", 4, 1, 1, 1, 32, 28, 2): (Tile(16, 32, 256, 2, 1), 85),
    ("weights", 4, 1, 8, 4, 16, 13, 1): (Tile(32, 64, 64, 2, 3), 264),
    ("weights", 4, 4, 16, 8, 8, 11, 2): (Tile(64, 64, 64, 2, 2), 261),
    ("weights", 4, 8, 8, 4, 16, 5, 1): (Tile(64, 64, 16, 2, 3), 261),
    ("weights", 4, 4, 16, 10, 16, 3, 1): (Tile(32, 32, 64, 4, 1), 180),
    ("weights", 4, 1, 1, 1, 16, 28, 2): (Tile(16, 16, 64, 4, 2), 132),
    ("weights", 4, 1, 4, 1, 8, 13, 1): (Tile(32, 16, 256, 2, 1), 264),
    ("weights", 4, 1, 8, 1, 4, 11, 2): (Tile(64, 16, 16, 2, 3), 264),
    ("weights", 4, 1, 4, 1, 8, 5, 1): (Tile(32, 16, 128, 2, 1), 72),
    ("weights", 4, 1, 8, 10, 4, 3, 1): (Tile(64, 32, 16, 2, 1), 128),
    ("weights", 4, 1, 3, 1, 32, 24, 2): (Tile(16, 32, 16, 2, 3), 264),
    ("weights", 4, 1, 8, 4, 16, 11, 1): (Tile(128, 64, 16, 2, 3), 264),
    ("weights", 4, 4, 16, 8, 8, 9, 1): (Tile(64, 64, 16, 2, 3), 522),
    ("weights", 4, 8, 8, 10, 16, 7, 2): (Tile(64, 128, 32, 2, 2), 522),
    ("weights", 4, 10, 16, 10, 16, 3, 1): (Tile(32, 32, 64, 2, 1), 450),
    ("forward", 2, 1, 8, 10, 4, 3, 1): (Tile(128, 64, 32, 4, 3), 0),
}

# -> tile, programs of one network that share its weight gradient
TUNED_MANY: dict[Key, tuple[Tile, int]] = {
    ("forward", 4, 1, 1, 1, 16, 28, 2): (Tile(256, 16, 16, 8, 1), 0),
    ("forward", 4, 1, 4, 1, 8, 13, 1): (Tile(128, 16, 64, 8, 1), 0),
    ("forward", 4, 1, 8, 1, 4, 11, 2): (Tile(64, 16, 16, 2, 3), 0),
    ("forward", 4, 1, 4, 1, 8, 5, 1): (Tile(128, 16, 64, 4, 1), 0),
    ("forward", 4, 1, 8, 10, 4, 3, 1): (Tile(64, 32, 16, 2, 3), 0),
    ("inputs", 4, 1, 8, 1, 4, 11, 2): (Tile(128, 16, 16, 2, 1), 0),
    ("inputs", 4, 1, 4, 1, 8, 5, 1): (Tile(64, 16, 16, 2, 1), 0),
    ("inputs", 4, 1, 8, 10, 4, 3, 1): (Tile(128, 16, 16, 2, 3), 0),
}
