"""How many steps each network of other authors is trained for, and how long one takes.

Steps are budgets of ours; the rest decides nothing but how many seeds a training has and what `reproduce --list`
expects it to take. `benchmarks/apply_zoo_steps.py` writes this table from what `purecaps reproduce zoo --only steps`
measured; until it has, milliseconds are estimates from operations and bytes counted on a CPU.
"""

from __future__ import annotations

from typing import NamedTuple


class Budget(NamedTuple):
    """Of one training.

    Args:
        steps: how many are taken.
        ms: about how many milliseconds one takes on one H200.
        compiled: whether network and loss go through torch.compile.
    """

    steps: int
    ms: float
    compiled: bool = False


# By the name of the job.
BUDGETS: dict[str, Budget] = {
    "table1/zoo-dcnetpp": Budget(20_000, 6),
    "table1/zoo-dcnet": Budget(15_000, 9),
    "table1/zoo-capsnet-dr1-nodecoder": Budget(30_000, 2.5),
    "table1/zoo-capsnet-dr-nodecoder": Budget(30_000, 3.8),
    "table1/zoo-attncaps": Budget(10_800, 1.2),
    "table1/zoo-capsnet-em": Budget(5_000, 75),
    "table3/zoo-dcnetpp": Budget(39_050, 8),
    "table3/zoo-dcnet": Budget(30_000, 8),
    "table3/zoo-mscaps": Budget(19_500, 10),
    "table3/zoo-capsnet-dr": Budget(15_000, 21),
    "table3/zoo-attncaps": Budget(90_000, 3.3),
    "table3/zoo-frms": Budget(5_000, 80),
    "table3/zoo-frem": Budget(5_000, 80),
    "table3/zoo-capsnet-em": Budget(10_000, 45),
    "table3/zoo-capsnet-vb": Budget(3_000, 150),
    "zoo/capsnet-dr1-mnist": Budget(30_000, 2.8),
    "zoo/capsnet-dr-mnist": Budget(30_000, 4.1),
    "zoo/mscaps-mnist": Budget(12_000, 10),
    "zoo/frms-mnist": Budget(6_000, 55),
    "zoo/frem-mnist": Budget(6_000, 55),
    "zoo/capsnet-vb-mnist": Budget(6_000, 25),
    "zoo/efficient-capsnet-mnist": Budget(100_000, 0.8),
    "zoo/idpa-capsnet-mnist": Budget(4_000, 45),
    "zoo/efficient-capsnet-cifar10": Budget(200_000, 0.8),
    "zoo/idpa-capsnet-cifar10": Budget(8_000, 65),
    "zoo/cnn-baseline-cifar10": Budget(10_000, 10.5),
    "zoo/lenet-cifar10": Budget(10_000, 0.4),
}
