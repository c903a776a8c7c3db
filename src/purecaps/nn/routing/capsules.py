"""What every routing procedure takes and gives, its checks, and the precision that it works in."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeAlias

import torch
from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops.autocast import autocast_dtype
from purecaps.ops.reference import length
from purecaps.ops.validation import check_floating, shape_text

VOTES = "[..., I, O, D]"
# The logarithm of an activation of 0 would have no gradient. Where all are 0, children weigh the same.
LEAST_ACTIVATION = 1e-12

P = ParamSpec("P")


class Capsules(NamedTuple):
    """Capsules of one layer.

    Args:
        poses: [..., C, D], a vector or the row-major numbers of a matrix each.
        activations: [..., C], how present each capsule is.
    """

    poses: Tensor
    activations: Tensor


# Logits [..., I, O] -> logarithms of the coefficients [..., I, O] by which parents share each child.
Compete: TypeAlias = Callable[[Tensor], Tensor]


def over_parents(logits: Tensor) -> Tensor:
    """Logarithms of the softmax over the parents [..., I, O]: a child's coefficients sum to 1."""
    return logits.log_softmax(dim=-1)


def log_weights(log_coefficients: Tensor, activations: Tensor | None) -> Tensor:
    """log(R_ij a_i) [..., I, O]; without activations all children weigh the same."""
    if activations is None:
        return log_coefficients
    return log_coefficients + activations.clamp(min=LEAST_ACTIVATION).log()[..., None]


def shares(log_weight: Tensor) -> Tensor:
    """Weights [..., I, O] divided by their sum over the children.

    Taken from logarithms, it is right for a parent whose weights are all too small for a float, too.
    """
    return log_weight.softmax(dim=-2)


def capsule_length(poses: Tensor) -> Tensor:
    """|pose| over the last axis, whose gradient at a zero pose is zero."""
    return length(poses, (-1,), keepdim=False)


def squash(s: Tensor) -> Tensor:
    """|s|^2 / (1 + |s|^2) s / |s| over the last axis (Sabour et al. 2017, equation 1); zero stays zero.

    Near zero it is |s| s, so its gradient there is zero.
    """
    r = length(s, (-1,))
    return (s * (r / (1 + r * r))).to(s.dtype)


def of_lengths(poses: Tensor) -> Capsules:
    """Capsules whose activation is their pose's length."""
    return Capsules(poses, capsule_length(poses))


def check_iterations(iterations: int) -> None:
    if not isinstance(iterations, int) or isinstance(iterations, bool) or iterations < 1:
        raise ConfigError(f"iterations: expected an int >= 1, got {iterations!r}")


def check_votes(votes: Tensor, activations: Tensor | None = None) -> None:
    """Refuses votes [..., I, O, D] of too few axes, and activations that are not [..., I]."""
    if votes.dim() < 3:
        raise ConfigError(
            f"votes: expected at least the 3 dimensions I, O, D of {VOTES}, "
            f"got {votes.dim()}: {shape_text(votes.shape)}"
        )
    if min(votes.shape[-3:]) < 1:
        raise ConfigError(f"votes: expected I, O and D of at least 1 in {VOTES}, got {shape_text(votes.shape)}")
    check_floating(votes, "votes")
    if activations is not None and activations.shape != votes.shape[:-2]:
        raise ConfigError(
            f"activations: expected {shape_text(votes.shape[:-2])}, one for each child of votes "
            f"{shape_text(votes.shape)}, got {shape_text(activations.shape)}"
        )


def check_fits(tensor: Tensor, name: str, expected: tuple[int, ...] | torch.Size, axes: str) -> None:
    """Refuses a tensor of another shape than the votes ask for."""
    if tuple(tensor.shape) != tuple(expected):
        raise ConfigError(f"{name}: expected {axes} = {shape_text(expected)}, got {shape_text(tensor.shape)}")


def float32_inside(route: Callable[P, Capsules]) -> Callable[P, Capsules]:
    """Makes a procedure work in float32 on bfloat16 and float16 votes, and switches autocast off in it.

    The capsules come back in float32 under autocast, as from softmax, and else in the dtype of the votes.
    """

    @functools.wraps(route)
    def widened(*args: P.args, **kwargs: P.kwargs) -> Capsules:
        votes = args[0] if args else kwargs.get("votes")
        if not isinstance(votes, Tensor):
            raise ConfigError(f"votes: expected a tensor {VOTES}, got {type(votes).__name__}")
        device = votes.device.type
        automatic = autocast_dtype(device) is not None
        if not automatic and not _is_half(votes):
            return route(*args, **kwargs)
        wide_args = [_widen(arg) for arg in args]
        wide_kwargs = {name: _widen(arg) for name, arg in kwargs.items()}
        if automatic:
            with torch.autocast(device, enabled=False):
                return route(*wide_args, **wide_kwargs)  # type: ignore[arg-type]
        routed = route(*wide_args, **wide_kwargs)  # type: ignore[arg-type]
        return Capsules(routed.poses.to(votes.dtype), routed.activations.to(votes.dtype))

    return widened


def _is_half(tensor: Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)


def _widen(value: object) -> object:
    return value.float() if isinstance(value, Tensor) and _is_half(value) else value
