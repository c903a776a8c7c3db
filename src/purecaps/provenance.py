"""What a number was made with: hardware, software, and the commit of these sources."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

import torch

from purecaps._version import __version__


def versions(device: torch.device) -> dict[str, str]:
    """Hardware and software a run was made with."""
    threads = torch.get_num_threads()
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return {
        "purecaps": __version__,
        "commit": commit(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "platform": platform.system(),
        "hardware": hardware if device.type == "cuda" else f"{hardware}, {threads} thread{'s' if threads != 1 else ''}",
    }


def on_cpu(versions: Mapping[str, str]) -> bool:
    """Whether what `versions` describes was computed on a CPU."""
    return versions["hardware"].endswith(("thread", "threads"))


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "CPU")


def commit() -> str:
    """The commit of the source tree, or "unknown" for an installed package.

    $PURECAPS_COMMIT says it where the sources were copied to a machine without their repository.
    """
    return os.environ.get("PURECAPS_COMMIT") or _commit_of_sources()


@functools.cache
def _commit_of_sources() -> str:
    here = Path(__file__).parent
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=here, capture_output=True, text=True, timeout=10
        )
        # Inside somebody else's repository, its commit would say nothing of this package.
        tracked = subprocess.run(
            ["git", "ls-files", "--error-unmatch", Path(__file__).name],
            cwd=here,
            capture_output=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return found.stdout.strip() if found.returncode == 0 and tracked.returncode == 0 else "unknown"
