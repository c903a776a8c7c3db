"""Routing procedures by name."""

from __future__ import annotations

import inspect
from typing import Any

from purecaps.errors import ConfigError, unknown_name
from purecaps.nn.routing.attention import AttentionRouting
from purecaps.nn.routing.dynamic import DynamicRouting
from purecaps.nn.routing.em import EMRouting
from purecaps.nn.routing.inverted_dot_product import InvertedDotProductRouting
from purecaps.nn.routing.kernel_density import FREMRouting, FRMSRouting
from purecaps.nn.routing.procedure import Routing
from purecaps.nn.routing.self_attention import SelfAttentionRouting
from purecaps.nn.routing.variational import VariationalRouting

ROUTINGS: dict[str, type[Routing]] = {
    routing.name: routing
    for routing in (
        DynamicRouting,
        EMRouting,
        AttentionRouting,
        FRMSRouting,
        FREMRouting,
        VariationalRouting,
        InvertedDotProductRouting,
        SelfAttentionRouting,
    )
}


def create_routing(name: str, *, children: int | None, parents: int, pose_size: int, **options: Any) -> Routing:
    """A procedure with what it learns.

    Args:
        name: one of `ROUTINGS`.
        children: I, or None where the number is open.
        parents: O.
        pose_size: D.
        options: the procedure's own, such as `iterations`.
    """
    if name not in ROUTINGS:
        raise unknown_name("routing", name, ROUTINGS)
    make = ROUTINGS[name]
    allowed = [key for key, value in inspect.signature(make).parameters.items() if value.kind is value.KEYWORD_ONLY]
    wrong = sorted(set(options) - set(allowed))
    if wrong:
        raise ConfigError(f"{wrong[0]}: not an option of {name} routing; it has {', '.join(allowed) or 'none'}")
    return make(children, parents, pose_size, **options)
