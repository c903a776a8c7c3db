"""What training costs: time and the device's memory, over all sittings of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch


class Meter:
    """Counts a run's seconds, its seconds a step once it is under way, and the most memory that it took.

    A sitting's first window of steps is left out of the seconds a step where another follows: kernels are compiled
    and chosen in it. Validation counts for neither time nor memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds = 0.0
        self.peak_memory: int | None = None
        self._first: tuple[float, int] | None = None
        self._seconds, self._steps = 0.0, 0  # of all windows but the first ones

    def add(self, seconds: float, steps: int) -> None:
        """Notes a window of steps, after which the device was waited for."""
        self.seconds += seconds
        if self._first is None:
            self._first = (seconds, steps)
        else:
            self._seconds, self._steps = self._seconds + seconds, self._steps + steps
        if self.device.type == "cuda":
            self.peak_memory = max(self.peak_memory or 0, torch.cuda.max_memory_allocated(self.device))

    def forget_peak(self) -> None:
        """What was allocated up to now is not training."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    @property
    def seconds_per_step(self) -> float | None:
        """None where no step was taken."""
        seconds, steps = (self._seconds, self._steps) if self._steps else self._first or (0.0, 0)
        return seconds / steps if steps else None

    def as_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        kept = {"under_way_seconds": self._seconds, "under_way_steps": self._steps}
        return {"seconds": self.seconds, "peak_memory": self.peak_memory, **kept}

    def restore(self, values: Mapping[str, Any]) -> None:
        """Goes on from `as_dict`; checkpoints of older versions know the seconds only."""
        self.seconds, self.peak_memory = values["seconds"], values.get("peak_memory")
        self._seconds, self._steps = values.get("under_way_seconds", 0.0), values.get("under_way_steps", 0)
