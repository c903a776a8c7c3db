"""The state of a run as one file, and the newest whole one of a folder."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from purecaps.errors import CheckpointError
from purecaps.models.store import load_weights
from purecaps.tensorfile import read_tensors, write_tensors

log = logging.getLogger("purecaps.train")

_NAME = re.compile(r"step-(\d{8})\.safetensors")
KEEP = 2


@dataclass(frozen=True)
class State:
    """What a run is made of between two steps.

    The data position is the step alone: batches and their transforms are pure functions of (seed, step).

    Args:
        model: the network in training.
        optimiser: over the model's parameters, in their order.
        averaged: the EMA weights by parameter name; empty where the recipe keeps none.
    """

    model: nn.Module
    optimiser: torch.optim.Optimizer
    averaged: dict[str, Tensor]


def save_checkpoint(folder: Path, step: int, state: State, meta: Mapping[str, Any]) -> Path:
    """Writes `folder`/step-NNNNNNNN.safetensors atomically and removes all but the newest `KEEP`."""
    tensors = {f"model.{name}": tensor for name, tensor in state.model.state_dict().items()}
    tensors |= {f"averaged.{name}": tensor for name, tensor in state.averaged.items()}
    for name, slots in _optimiser_slots(state):
        tensors |= {f"optimiser.{name}.{slot}": tensor for slot, tensor in slots.items()}
    tensors |= {f"rng.{name}": tensor for name, tensor in _rng_states().items()}
    path = folder / f"step-{step:08d}.safetensors"
    write_tensors(path, "checkpoint", tensors, {**meta, "step": step})
    for old in checkpoints(folder)[KEEP:]:
        old.unlink(missing_ok=True)
    return path


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoint files of a folder, newest first."""
    found = [path for path in folder.glob("step-*.safetensors") if _NAME.fullmatch(path.name)]
    return sorted(found, reverse=True)


def read_newest(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """The newest checkpoint that is whole; corrupt ones are passed over with a warning. None without any."""
    faults = []
    for path in checkpoints(folder):
        try:
            found = read_tensors(path, "checkpoint")
        except CheckpointError as error:
            faults.append(str(error))
            continue
        for fault in faults:
            log.warning("%s; going back to %s", fault, path.name)
        return found
    if faults:
        raise CheckpointError(f"{folder}: no checkpoint can be read: {'; '.join(faults)}")
    return None


def restore(state: State, tensors: Mapping[str, Tensor], *, what: str) -> None:
    """Puts a checkpoint's tensors back into `state` and the random generators."""
    load_weights(state.model, _below("model.", tensors), what=what)
    averaged = _below("averaged.", tensors)
    if averaged.keys() != state.averaged.keys():
        raise CheckpointError(f"{what}: expected averaged weights {sorted(state.averaged)}, got {sorted(averaged)}")
    for name, tensor in state.averaged.items():
        tensor.copy_(averaged[name])
    fused = state.optimiser.param_groups[0].get("fused")
    for name, parameter in state.model.named_parameters():
        counter_device = parameter.device if fused else torch.device("cpu")
        saved = _below(f"optimiser.{name}.", tensors)
        # Moments must be laid out like their parameter: fused Adam walks both by address.
        state.optimiser.state[parameter] = {
            slot: tensor.to(counter_device)
            if slot == "step"
            else torch.empty_like(parameter, requires_grad=False).copy_(tensor)
            for slot, tensor in saved.items()
        }
    _restore_rng(_below("rng.", tensors))


def _optimiser_slots(state: State) -> Iterable[tuple[str, dict[str, Tensor]]]:
    for name, parameter in state.model.named_parameters():
        yield name, dict(state.optimiser.state[parameter])


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _rng_states() -> dict[str, Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _restore_rng(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
