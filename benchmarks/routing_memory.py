"""How much memory does a training step of a routing network take, with votes kept and with votes computed again?

    PYTHONPATH=src python benchmarks/routing_memory.py OUT.json [--kept] [--only capsnet_em] [--batch 64]

On a CPU, where the most memory that a process ever had is known to the system: forward, loss and backward of one batch,
each in a process of its own, less what the process had before the step. With --kept also as it would be if nothing was
computed again; that of EM routing at batch 128 takes about 22 GiB. What was counted for a GPU is in docs/zoo.md.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from purecaps.files import write_json
from purecaps.losses import margin_loss
from purecaps.models import create_model
from purecaps.provenance import versions

# What is to fit into 24 GiB: a batch size, and options of the network.
CASES = {"capsnet_em": (128, {}), "capsnet_dr": (512, {"decoder": False})}


def resident() -> int:
    """The most bytes that this process has had in memory so far; Linux counts in KiB."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def step(name: str, recompute: bool | str, batch: int) -> dict[str, Any]:
    options = CASES[name][1]
    torch.manual_seed(0)
    model = create_model(name, **options)
    for layer in model.modules():
        if hasattr(layer, "recompute"):
            layer.recompute = recompute
    images = torch.rand(batch, 1, 28, 28)
    before, begun = resident(), time.perf_counter()
    loss = margin_loss(model(images), torch.arange(batch) % 10, m_pos=0.9, m_neg=0.1, lam=0.5)
    loss.backward()
    return {
        "model": name,
        "batch": batch,
        "recompute": recompute,
        "GiB": (resident() - before) / 2**30,
        "seconds": time.perf_counter() - begun,
        "loss": loss.item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, nargs="?", help="a JSON file for what was measured")
    parser.add_argument("--only", choices=list(CASES), help="one network")
    parser.add_argument("--batch", type=int, help="images, else as many as are to fit into 24 GiB")
    parser.add_argument("--kept", action="store_true", help="also with everything kept")
    parser.add_argument("--one", choices=("auto", "kept"), help=argparse.SUPPRESS)  # what a process of its own is for
    options = parser.parse_args()
    if options.one:
        print(json.dumps(step(options.only, "auto" if options.one == "auto" else False, options.batch)))
        return
    rows = []
    for name in [options.only] if options.only else CASES:
        batch = options.batch or CASES[name][0]
        for way in ("kept", "auto") if options.kept else ("auto",):
            command = [sys.executable, __file__, "--only", name, "--batch", str(batch), "--one", way]
            row = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            print(f"{name:12} batch {batch:4} {way:5} {row['GiB']:6.2f} GiB {row['seconds']:6.1f} s", flush=True)
            rows.append(row)
    if options.out:
        write_json(options.out, {"versions": versions(torch.device("cpu")), "rows": rows})


if __name__ == "__main__":
    main()
