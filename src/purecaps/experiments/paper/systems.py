"""Which networks of other authors there are: those of tables 1 and 3, two of today's, and plain CNNs.

How many steps each of them is trained for is in budgets.py.
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
        error=Published(0.29, None, "Table 1"), parameters=13.4e6, steps_known=False,
    ),
    System(
        "table1", "dcnet", "DCNet, dynamic routing", "DCNet", "dcnet", "dcnet",
        error=Published(0.25, None, "Table 1"), parameters=11.8e6,
    ),
    System(
        "table1", "capsnet-dr1-nodecoder", "CapsNets, dynamic (1)", "dynamic (1)", "capsnet_dr1_nodecoder",
        "capsnet_dr", error=Published(0.34, 0.03, "Table 1"), parameters=6.8e6,
    ),
    System(
        "table1", "capsnet-dr-nodecoder", "CapsNets, dynamic (3)", "dynamic (3)", "capsnet_dr_nodecoder", "capsnet_dr",
        error=Published(0.35, 0.04, "Table 1"), parameters=6.8e6,
    ),
    System(
        "table1", "attncaps", "Atten-Caps, attention", "Atten-Caps", "attncaps", "attncaps",
        error=Published(0.64, None, "Table 1"), parameters=5.3e6,
    ),
    System(
        "table1", "capsnet-em", "CapsNets, EM (3)", "EM (3)", "capsnet_em", "capsnet_em",
        error=Published(0.44, None, "Table 1"), parameters=320e3,
    ),
)  # fmt: skip
TABLE3 = (
    System(
        "table3", "dcnetpp", "DCNet++, dynamic routing", "DCNet++", "dcnetpp", "dcnetpp", data="cifar10",
        error=Published(10.29, None, "Table 3"), parameters=13.4e6,
    ),
    System(
        "table3", "dcnet", "DCNet, dynamic routing", "DCNet", "dcnet", "dcnet", data="cifar10",
        error=Published(18.37, None, "Table 3"), parameters=11.8e6, steps_known=False,
    ),
    System(
        "table3", "mscaps", "MS-Caps, dynamic routing", "MS-Caps", "mscaps_cifar", "mscaps", data="cifar10",
        error=Published(24.3, None, "Table 3"), parameters=11.2e6,
    ),
    System(
        "table3", "capsnet-dr", "CapsNets, dynamic (3), 7 of them", "dynamic (3)", "capsnet_dr_cifar", "capsnet_dr",
        data="cifar10", error=Published(10.6, None, "Table 3"), parameters=6.8e6,
        note="one network, where the published figure is of 7 together",
    ),
    System(
        "table3", "attncaps", "Atten-Caps, attention", "Atten-Caps", "attncaps_cifar", "attncaps", data="cifar10",
        error=Published(11.39, None, "Table 3"), parameters=5.6e6,
    ),
    System(
        "table3", "frms", "FRMS, fast dynamic (2)", "FRMS", "frms", "frms", data="cifar10", by=OURS, steps_known=False,
        error=Published(15.6, None, "Table 3"), parameters=1.2e6, note=REBUILT,
    ),
    System(
        "table3", "frem", "FREM, fast dynamic (2)", "FREM", "frem", "frem", data="cifar10", by=OURS, steps_known=False,
        error=Published(14.3, None, "Table 3"), parameters=1.2e6, note=REBUILT,
    ),
    System(
        "table3", "capsnet-em", "CapsNets, EM (3)", "EM (3)", "capsnet_em_cifar", "capsnet_em", data="cifar10",
        error=Published(11.9, None, "Table 3"), parameters=458e3,
    ),
    System(
        "table3", "capsnet-vb", "Capsule-VAE, VB routing", "VB", "capsnet_vb_cifar", "capsnet_vb", data="cifar10",
        error=Published(11.2, None, "Table 3"), parameters=323e3, note=REBUILT, steps_known=False,
    ),
)  # fmt: skip

# Those that the tables do not have on the data set, or not at all.
MNIST_MORE = (
    System(
        "zoo", "capsnet-dr1", "CapsNets, dynamic (1), decoder", "dynamic (1), decoder", "capsnet_dr1", "capsnet_dr",
        error=Published(0.29, 0.011, SABOUR), parameters=8.2e6,
    ),
    System(
        "zoo", "capsnet-dr", "CapsNets, dynamic (3), decoder", "dynamic (3), decoder", "capsnet_dr", "capsnet_dr",
        error=Published(0.25, 0.005, SABOUR), parameters=8.2e6,
    ),
    System(
        "zoo", "mscaps", "MS-Caps, dynamic routing", "MS-Caps", "mscaps", "mscaps", steps_known=False,
    ),
    System(
        "zoo", "frms", "FRMS, fast dynamic (2)", "FRMS", "frms", "frms",
        by=OURS, steps_known=False,
    ),
    System(
        "zoo", "frem", "FREM, fast dynamic (2)", "FREM", "frem", "frem",
        by=OURS, steps_known=False,
    ),
    System(
        "zoo", "capsnet-vb", "Capsule-VAE, VB routing", "VB", "capsnet_vb", "capsnet_vb",
    ),
    System(
        "zoo", "efficient-capsnet", "Efficient-CapsNet, self-attention", "Efficient-CapsNet", "efficient_capsnet",
        "efficient_capsnet", error=Published(0.26, None, "Mazzia et al. 2021"), parameters=161e3,
    ),
    System(
        "zoo", "idpa-capsnet", "Inverted dot-product attention (2)", "inverted attention", "idpa_capsnet", "idpa",
        steps_known=False,
    ),
)  # fmt: skip
CIFAR_MORE = (
    System(
        "zoo", "efficient-capsnet", "Efficient-CapsNet, self-attention", "Efficient-CapsNet", "efficient_capsnet",
        "efficient_capsnet", data="cifar10", by=OURS, steps_known=False,
    ),
    System(
        "zoo", "idpa-capsnet", "Inverted dot-product attention (2)", "inverted attention", "idpa_capsnet", "idpa",
        data="cifar10", error=Published(5.15, None, "Tsai et al. 2020, mean of several"),
        parameters=1.83e6,
    ),
    System(
        "zoo", "cnn-baseline", "CNN baseline", "CNN baseline", "cnn_baseline", "cnn", data="cifar10",
        by=OURS, steps_known=False,
    ),
    System(
        "zoo", "lenet", "LeNet", "LeNet", "lenet", "cnn", data="cifar10", by=OURS,
        steps_known=False,
    ),
)  # fmt: skip
SYSTEMS = (*TABLE1, *TABLE3, *MNIST_MORE, *CIFAR_MORE)
