"""Which networks of other authors there are: those of tables 1 and 3, two of today's, and plain CNNs.

Of each the budget in steps and the milliseconds a step are plain numbers here. The latter are estimates, from
operations and bytes counted on a CPU, not measured: they say about how long something takes, and which trainings have
three seeds.
"""

from __future__ import annotations

from purecaps.experiments.paper.system import OURS, System
from purecaps.experiments.paper.verdict import Published

SABOUR = "Sabour et al. 2017, Table 1"
REBUILT = "the network is a reconstruction"

# In the order of the paper's tables; error in percent and parameters as they stand there.
TABLE1 = (
    System(
        "table1", "dcnetpp", "DCNet++, dynamic routing", "DCNet++", "dcnetpp", "dcnetpp",
        steps=20_000, ms=6, error=Published(0.29, None, "Table 1"), parameters=13.4e6,
    ),
    System(
        "table1", "dcnet", "DCNet, dynamic routing", "DCNet", "dcnet", "dcnet",
        steps=15_000, ms=9, error=Published(0.25, None, "Table 1"), parameters=11.8e6,
    ),
    System(
        "table1", "capsnet-dr1-nodecoder", "CapsNets, dynamic (1)", "dynamic (1)", "capsnet_dr1_nodecoder",
        "capsnet_dr", steps=30_000, ms=2.5, error=Published(0.34, 0.03, "Table 1"), parameters=6.8e6,
    ),
    System(
        "table1", "capsnet-dr-nodecoder", "CapsNets, dynamic (3)", "dynamic (3)", "capsnet_dr_nodecoder", "capsnet_dr",
        steps=30_000, ms=3.8, error=Published(0.35, 0.04, "Table 1"), parameters=6.8e6,
    ),
    System(
        "table1", "attncaps", "Atten-Caps, attention", "Atten-Caps", "attncaps", "attncaps",
        steps=10_800, ms=1.2, error=Published(0.64, None, "Table 1"), parameters=5.3e6,
    ),
    System(
        "table1", "capsnet-em", "CapsNets, EM (3)", "EM (3)", "capsnet_em", "capsnet_em",
        steps=5000, ms=75, error=Published(0.44, None, "Table 1"), parameters=320e3, steps_known=False,
    ),
)  # fmt: skip
TABLE3 = (
    System(
        "table3", "dcnetpp", "DCNet++, dynamic routing", "DCNet++", "dcnetpp", "dcnetpp", data="cifar10",
        steps=40_000, ms=8, error=Published(10.29, None, "Table 3"), parameters=13.4e6,
    ),
    System(
        "table3", "dcnet", "DCNet, dynamic routing", "DCNet", "dcnet", "dcnet", data="cifar10",
        steps=30_000, ms=8, error=Published(18.37, None, "Table 3"), parameters=11.8e6,
    ),
    System(
        "table3", "mscaps", "MS-Caps, dynamic routing", "MS-Caps", "mscaps_cifar", "mscaps", data="cifar10",
        steps=19_500, ms=10, error=Published(24.3, None, "Table 3"), parameters=11.2e6,
    ),
    System(
        "table3", "capsnet-dr", "CapsNets, dynamic (3), 7 of them", "dynamic (3)", "capsnet_dr_cifar", "capsnet_dr",
        data="cifar10", steps=15_000, ms=21, error=Published(10.6, None, "Table 3"), parameters=6.8e6,
        note="one network, where the published figure is of 7 together",
    ),
    System(
        "table3", "attncaps", "Atten-Caps, attention", "Atten-Caps", "attncaps_cifar", "attncaps", data="cifar10",
        steps=90_000, ms=3.3, error=Published(11.39, None, "Table 3"), parameters=5.6e6,
    ),
    System(
        "table3", "frms", "FRMS, fast dynamic (2)", "FRMS", "frms", "frms", data="cifar10", by=OURS, steps_known=False,
        steps=5000, ms=80, error=Published(15.6, None, "Table 3"), parameters=1.2e6, note=REBUILT,
    ),
    System(
        "table3", "frem", "FREM, fast dynamic (2)", "FREM", "frem", "frem", data="cifar10", by=OURS, steps_known=False,
        steps=5000, ms=80, error=Published(14.3, None, "Table 3"), parameters=1.2e6, note=REBUILT,
    ),
    System(
        "table3", "capsnet-em", "CapsNets, EM (3)", "EM (3)", "capsnet_em_cifar", "capsnet_em", data="cifar10",
        steps=10_000, ms=45, error=Published(11.9, None, "Table 3"), parameters=458e3, steps_known=False,
    ),
    System(
        "table3", "capsnet-vb", "Capsule-VAE, VB routing", "VB", "capsnet_vb_cifar", "capsnet_vb", data="cifar10",
        steps=3000, ms=150, error=Published(11.2, None, "Table 3"), parameters=323e3, note=REBUILT,
    ),
)  # fmt: skip

# Those that the tables do not have on the data set, or not at all.
MNIST_MORE = (
    System(
        "zoo", "capsnet-dr1", "CapsNets, dynamic (1), decoder", "dynamic (1), decoder", "capsnet_dr1", "capsnet_dr",
        steps=30_000, ms=2.8, error=Published(0.29, 0.011, SABOUR), parameters=8.2e6,
    ),
    System(
        "zoo", "capsnet-dr", "CapsNets, dynamic (3), decoder", "dynamic (3), decoder", "capsnet_dr", "capsnet_dr",
        steps=30_000, ms=4.1, error=Published(0.25, 0.005, SABOUR), parameters=8.2e6,
    ),
    System(
        "zoo", "mscaps", "MS-Caps, dynamic routing", "MS-Caps", "mscaps", "mscaps", steps=12_000, ms=10,
    ),
    System(
        "zoo", "frms", "FRMS, fast dynamic (2)", "FRMS", "frms", "frms",
        steps=6000, ms=55, by=OURS, steps_known=False,
    ),
    System(
        "zoo", "frem", "FREM, fast dynamic (2)", "FREM", "frem", "frem",
        steps=6000, ms=55, by=OURS, steps_known=False,
    ),
    System(
        "zoo", "capsnet-vb", "Capsule-VAE, VB routing", "VB", "capsnet_vb", "capsnet_vb", steps=6000, ms=25,
    ),
    System(
        "zoo", "efficient-capsnet", "Efficient-CapsNet, self-attention", "Efficient-CapsNet", "efficient_capsnet",
        "efficient_capsnet", steps=100_000, ms=0.8, error=Published(0.26, None, "Mazzia et al. 2021"), parameters=161e3,
    ),
    System(
        "zoo", "idpa-capsnet", "Inverted dot-product attention (2)", "inverted attention", "idpa_capsnet", "idpa",
        steps=4000, ms=45, steps_known=False,
    ),
)  # fmt: skip
CIFAR_MORE = (
    System(
        "zoo", "efficient-capsnet", "Efficient-CapsNet, self-attention", "Efficient-CapsNet", "efficient_capsnet",
        "efficient_capsnet", data="cifar10", steps=200_000, ms=0.8, by=OURS, steps_known=False,
    ),
    System(
        "zoo", "idpa-capsnet", "Inverted dot-product attention (2)", "inverted attention", "idpa_capsnet", "idpa",
        data="cifar10", steps=8000, ms=65, error=Published(5.15, None, "Tsai et al. 2020, mean of several"),
        parameters=1.83e6,
    ),
    System(
        "zoo", "cnn-baseline", "CNN baseline", "CNN baseline", "cnn_baseline", "cnn", data="cifar10",
        steps=10_000, ms=10.5, by=OURS, steps_known=False,
    ),
    System(
        "zoo", "lenet", "LeNet", "LeNet", "lenet", "cnn", data="cifar10", steps=10_000, ms=0.4, by=OURS,
        steps_known=False,
    ),
)  # fmt: skip
SYSTEMS = (*TABLE1, *TABLE3, *MNIST_MORE, *CIFAR_MORE)
