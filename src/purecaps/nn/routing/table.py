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


def create_routing(
    name: str | type[Routing], *, children: int | None, parents: int, pose_size: int, **options: Any
) -> Routing:
    """A procedure with what it learns.

    Args:
        name: one of `ROUTINGS`, or a class of one's own, a subclass of `Routing` that is made with the three sizes.
        children: I, or None where the number is open.
        parents: O.
        pose_size: D.
        options: the procedure's own, such as `iterations`.
    """
    make = _class_of(name)
    signature = inspect.signature(make)
    own = list(signature.parameters.values())[3:]  # after the sizes
    allowed = [each.name for each in own if each.kind is not each.VAR_KEYWORD]
    wrong = [] if len(allowed) < len(own) else sorted(set(options) - set(allowed))
    if wrong:
        raise ConfigError(f"{wrong[0]}: not an option of {make.name} routing; it has {', '.join(allowed) or 'none'}")
    try:
        signature.bind(children, parents, pose_size, **options)
    except TypeError as fault:
        raise ConfigError(
            "routing: expected a class that is made with (children, parents, pose_size), "
            f"got {make.__name__}{signature}"
        ) from fault
    return make(children, parents, pose_size, **options)


def _class_of(name: object) -> type[Routing]:
    if isinstance(name, str):
        if name not in ROUTINGS:
            raise unknown_name("routing", name, ROUTINGS)
        return ROUTINGS[name]
    if not isinstance(name, type) or not issubclass(name, Routing) or name is Routing:
        raise ConfigError(
            f"routing: expected a name ({', '.join(sorted(ROUTINGS))}) or a subclass of purecaps.nn.routing.Routing, "
            f"got {name!r}"
        )
    return name
