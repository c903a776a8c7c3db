"""Writes the ONNX graphs that the demo's page runs into the package.

    python tools/package_demo_graphs.py

Those of networks in float hold no weights, and change only with the architectures, with `purecaps.demo.graphs` or with
the exporter. Those in 8-bit integers hold the packaged weights, and change with them.
"""

from __future__ import annotations

from pathlib import Path

from purecaps.demo.graphs import export_graphs
from purecaps.demo.site import NETWORKS
from purecaps.export.onnx_int8 import build_model
from purecaps.files import atomic_write
from purecaps.models import create_model
from purecaps.models.pcapsnet import PCapsNet
from purecaps.quant import QuantisedPCapsNet

FOLDER = Path(__file__).parent.parent / "src" / "purecaps" / "demo" / "networks"


def main() -> None:
    for name in NETWORKS:
        network = create_model(name)
        assert isinstance(network, PCapsNet)
        export_graphs(network, name, FOLDER / f"{name}.onnx", FOLDER / f"{name}-direction.onnx")
        with atomic_write(FOLDER / f"{name}-int8.onnx") as temporary:
            temporary.write_bytes(
                build_model(QuantisedPCapsNet.from_package(name), capsules=True).SerializeToString(deterministic=True)
            )


if __name__ == "__main__":
    main()
