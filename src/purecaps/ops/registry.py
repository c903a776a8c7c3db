"""The implementations of one meaning, and how "auto" chooses among them.

The extension point for fused kernels: an implementation is a name, two functions and a predicate that says why
it cannot take a problem. It is private: the public names are those of api.py.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from purecaps.errors import ConfigError, unknown_name
from purecaps.ops import conv, cpu, reference, triton
from purecaps.ops.geometry import Block, Geometry

log = logging.getLogger("purecaps.ops")

ConvFunction = Callable[[Tensor, Tensor, Geometry], Tensor]
BlockFunction = Callable[[Tensor, Tensor, Geometry, float, "int | None"], Tensor]
RunFunction = Callable[[Tensor, Sequence[Tensor], Sequence[Block]], "tuple[Tensor, Tensor] | None"]
Refusal = Callable[[Tensor, Tensor, Geometry, "int | None"], "str | None"]


def takes_everything(u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None) -> str | None:
    return None


def always(u: Tensor) -> bool:
    return True


def never(u: Tensor) -> bool:
    return False


@dataclass(frozen=True)
class Implementation:
    """One way to compute a capsule convolution and a capsule block.

    Args:
        name: what `impl=` calls it.
        caps_conv2d: (u, w, geometry) -> v.
        caps_block: (u, w, geometry, negative_slope, chunk) -> squashed v.
        refuses: (u, w, geometry, chunk) -> None, or why this problem is not covered.
        automatic: whether impl="auto" may take it for a given u.
        caps_blocks: (u, kernels, blocks) -> the last block's capsules and lengths of several blocks at once, or None
            where only single blocks are covered.
        diagonal: whether its convolution may be followed by a squash that keeps the Jacobian's diagonal alone.
    """

    name: str
    caps_conv2d: ConvFunction
    caps_block: BlockFunction
    refuses: Refusal = takes_everything
    automatic: Callable[[Tensor], bool] = always
    caps_blocks: RunFunction | None = None
    diagonal: bool = False

    def obstacle(self, u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None, gradient: str) -> str | None:
        """Why it does not cover a problem; None where it does."""
        if gradient != "exact" and not self.diagonal:
            return f"squash_gradient = {gradient!r}, only 'exact' is covered"
        return self.refuses(u, w, geometry, chunk)


# "auto" takes the first that does not refuse: fused kernels go before "conv".
_IMPLEMENTATIONS: dict[str, Implementation] = {}
_announced: set[str] = set()


def register(implementation: Implementation) -> None:
    """Adds an implementation, the last that "auto" tries."""
    if implementation.name in names():
        raise ConfigError(f"name: expected a new implementation name, got {implementation.name!r}")
    _IMPLEMENTATIONS[implementation.name] = implementation


def names() -> tuple[str, ...]:
    return ("auto", *_IMPLEMENTATIONS)


def check_name(impl: str) -> None:
    """Refuses a name that no implementation has."""
    if impl not in names():
        raise unknown_name("impl", impl, names())


def resolve(
    impl: str, u: Tensor, w: Tensor, geometry: Geometry, chunk: int | None = None, gradient: str = "exact"
) -> Implementation:
    """The implementation that `impl` names for this problem; never another one than asked for."""
    if impl == "auto":
        for candidate in _IMPLEMENTATIONS.values():
            if candidate.automatic(u) and candidate.obstacle(u, w, geometry, chunk, gradient) is None:
                _announce(candidate.name, u)
                return candidate
        raise ConfigError("impl: no implementation takes this problem")
    check_name(impl)
    chosen = _IMPLEMENTATIONS[impl]
    reason = chosen.obstacle(u, w, geometry, chunk, gradient)
    if reason is not None:
        raise ConfigError(f'impl: {impl!r} does not cover this problem ({reason}); use "auto" or "conv"')
    return chosen


def _announce(name: str, u: Tensor) -> None:
    # Said once for each device type; a traced program must not log.
    said = f"{name} on {u.device.type}"
    if not torch.compiler.is_compiling() and said not in _announced:
        _announced.add(said)
        log.info('impl="auto" takes %s', said)


register(
    Implementation(
        "triton",
        triton.caps_conv2d,
        triton.caps_block,
        triton.refuses,
        automatic=triton.pays,
        caps_blocks=triton.caps_blocks,
    )
)
register(Implementation("cpu", cpu.caps_conv2d, cpu.caps_block, cpu.refuses))
register(Implementation("conv", conv.caps_conv2d, conv.caps_block, diagonal=True))
# The specification is slow: only for who asks for it by name.
register(Implementation("reference", reference.caps_conv2d, reference.caps_block, automatic=never, diagonal=True))
