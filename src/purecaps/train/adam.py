"""AdamW with decoupled weight decay; inside a CUDA graph, one launch for all parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from purecaps.ops import triton as fused
from purecaps.ops.triton.problem import memory_order

# Parameters that one launch takes: the kernel has a branch for each.
MOST_AT_ONCE = 24


class AdamW(torch.optim.AdamW):
    """torch's AdamW, state and all, with a faster step where the learning rate is a tensor on a CUDA device."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        # The first step makes the state.
        if closure is not None or not all(self._takes(group) for group in self.param_groups):
            return super().step(closure)
        from purecaps.train.adam_kernel import launch_adam

        for group in self.param_groups:
            parameters = group["params"]
            for first in range(0, len(parameters), MOST_AT_ONCE):
                part = parameters[first : first + MOST_AT_ONCE]
                launch_adam(
                    part,
                    [each.grad for each in part],
                    [self.state[each]["exp_avg"] for each in part],
                    [self.state[each]["exp_avg_sq"] for each in part],
                    [self.state[each]["step"] for each in part],
                    self._ticket(group["lr"].device),
                    group["lr"],
                    group["betas"],
                    group["eps"],
                    group["weight_decay"],
                )
        return None

    def _ticket(self, device: torch.device) -> Tensor:
        """A counter of each optimiser's own: two of them may run at once."""
        tickets: dict[torch.device, Tensor] = self.__dict__.setdefault("_tickets", {})
        if device not in tickets:
            tickets[device] = torch.zeros((), dtype=torch.int32, device=device)
        return tickets[device]

    def _takes(self, group: dict[str, Any]) -> bool:
        rate = group["lr"]
        if not isinstance(rate, Tensor) or fused.missing(rate.device.type) is not None:
            return False
        if group["amsgrad"] or group["maximize"]:
            return False
        return all(self._alike(parameter) for parameter in group["params"])

    def _alike(self, parameter: Tensor) -> bool:
        """Whether a parameter and all that goes with it lie in memory in the same order, without gaps."""
        state, gradient = self.state.get(parameter), parameter.grad
        if not state or gradient is None:
            return False
        others = (gradient, state["exp_avg"], state["exp_avg_sq"])
        if any(each.dtype != torch.float32 or _steps(each) != _steps(parameter) for each in (parameter, *others)):
            return False
        return parameter.permute(memory_order(parameter)).is_contiguous()


def _steps(tensor: Tensor) -> list[int]:
    """Strides of the axes along which there is a step to take; autograd leaves those of length 1 as they come."""
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]
