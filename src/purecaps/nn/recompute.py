"""Votes in little memory: a batch routed in parts, each computed again in the backward pass.

Votes are I*O/C times as large as the capsules that they come from, and a procedure keeps several tensors of their size
for the backward pass. Images do not meet in a routing procedure. So the batch is cut into parts whose votes stay below
a limit, and of each part only the layer's input is kept: votes and routing are computed a second time when their
gradients are due. Results and gradients are those of the whole batch. `docs/zoo.md` has the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from purecaps.errors import ConfigError
from purecaps.nn.routing.capsules import Capsules

# In numbers, so 256 MiB in float32: a part is large enough to fill a GPU, and a few of its size fit anywhere.
VOTES_AT_ONCE = 2**26
# torch.compile unrolls the parts, and what it takes to compile them grows faster than their number: the EM network at
# batch 64 has 6,000 operations in its backward pass with parts as above, 1,400 with these. It fuses most of what is as
# large as the votes, so that fewer of such tensors exist at a time.
COMPILED_VOTES_AT_ONCE = 2**28

Route = Callable[[Tensor, "Tensor | None", "Tensor | None"], Capsules]


def check_recompute(recompute: bool | str, votes_at_once: int | None) -> None:
    if not isinstance(recompute, bool) and recompute != "auto":  # 0 and 1 are equal to False and True
        raise ConfigError(f'recompute: expected "auto", True or False, got {recompute!r}')
    if votes_at_once is not None and (not isinstance(votes_at_once, int) or votes_at_once < 1):
        raise ConfigError(f"votes_at_once: expected an int >= 1, or None, got {votes_at_once!r}")


def route_in_parts(
    route: Route,
    poses: Tensor,
    activations: Tensor | None,
    parents: Tensor | None,
    *,
    votes_per_image: int,
    recompute: bool | str,
    votes_at_once: int | None,
) -> Capsules:
    """`route(poses, activations, parents)` on equal parts of the batch, put together again.

    Args:
        route: from child capsules to parent capsules, image by image.
        poses: [B, ...].
        activations: [B, ...] or None.
        parents: [B, ...] or None.
        votes_per_image: how many numbers the votes of one image are.
        recompute: True computes votes and routing again in the backward pass, in parts of the batch; False runs the
            whole batch at once and keeps everything; "auto" is True where the votes exceed `votes_at_once`.
        votes_at_once: how many numbers the votes of a part may be; a part has at least one image. None is
            `VOTES_AT_ONCE`, and `COMPILED_VOTES_AT_ONCE` under torch.compile.
    """
    batch = poses.shape[0]
    if votes_at_once is None:
        votes_at_once = COMPILED_VOTES_AT_ONCE if torch.compiler.is_compiling() else VOTES_AT_ONCE
    count = min(batch, math.ceil(batch * votes_per_image / votes_at_once))
    if count < 1 or recompute is False or (recompute == "auto" and count == 1):
        return route(poses, activations, parents)
    size = math.ceil(batch / count)
    routed = []
    for start in range(0, batch, size):
        part = [None if whole is None else whole[start : start + size] for whole in (poses, activations, parents)]
        routed.append(_recomputed(route, part))
    if len(routed) == 1:
        return routed[0]
    return Capsules(*(torch.cat(pieces) for pieces in zip(*routed, strict=True)))


def _recomputed(route: Route, part: list[Tensor | None]) -> Capsules:
    if not torch.is_grad_enabled():
        return route(*part)  # type: ignore[arg-type]
    # Routing draws nothing, so no random state is kept: asking for it would stop a CUDA graph from being captured.
    return checkpoint(route, *part, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
