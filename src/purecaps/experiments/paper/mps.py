"""NVIDIA's Multi-Process Service, by which kernels of several processes run on one GPU at the same time."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

CONTROL = "nvidia-cuda-mps-control"
USUAL = Path("/tmp/nvidia-mps/control")  # of a service that somebody else has started
SECONDS = 30
CLIENT = "import torch; torch.zeros(1, device='cuda')"  # what shows that the service serves


@contextlib.contextmanager
def multi_process_service(say: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Starts the service where it can be, stops it at the end, and gives what its users need in their environment.

    Without it processes take turns on the GPU, which is right but slower. It is said which of the two it is.

    Args:
        say: told what happens.
    """
    control = shutil.which(CONTROL)
    if "CUDA_MPS_PIPE_DIRECTORY" in os.environ or USUAL.exists():
        yield {}
        return
    if control is None:
        say(f"{CONTROL} is not there: the processes take turns on the GPU")
        yield {}
        return
    # The service may still write to its log when the folder goes.
    with tempfile.TemporaryDirectory(prefix="purecaps-mps-", ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in variables.values():
            Path(path).mkdir()
        trouble = _call([control, "-d"], "", variables)
        if trouble is not None:
            say(f"{CONTROL} did not start ({trouble}): the processes take turns on the GPU")
            yield {}
            return
        try:
            # It has said that it runs before there was anybody to serve.
            trouble = _call([sys.executable, "-c", CLIENT], "", variables)
            if trouble is not None:
                say(f"{CONTROL} started and serves nobody ({trouble}): the processes take turns on the GPU")
            yield variables if trouble is None else {}
        finally:
            _call([control], "quit\n", variables)


def _call(command: list[str], text: str, variables: dict[str, str]) -> str | None:
    """What went wrong, if anything did."""
    try:
        # Not into a pipe: the service that stays behind would hold it open, and the end would never come.
        done = subprocess.run(
            command,
            input=text,
            text=True,
            env={**os.environ, **variables},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"exit code {done.returncode}" if done.returncode else None
