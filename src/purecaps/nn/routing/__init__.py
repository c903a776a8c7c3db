"""Routing procedures: plain functions from votes to capsules, and the same by name with what they learn."""

from purecaps.nn.routing.attention import attention
from purecaps.nn.routing.capsules import Capsules, capsule_length, over_parents, squash
from purecaps.nn.routing.dynamic import dynamic
from purecaps.nn.routing.em import em
from purecaps.nn.routing.inverted_dot_product import inverted_dot_product
from purecaps.nn.routing.kernel_density import frem, frms
from purecaps.nn.routing.procedure import Routing
from purecaps.nn.routing.self_attention import self_attention
from purecaps.nn.routing.table import ROUTINGS, create_routing
from purecaps.nn.routing.variational import variational

__all__ = [
    "ROUTINGS",
    "Capsules",
    "Routing",
    "attention",
    "capsule_length",
    "create_routing",
    "dynamic",
    "em",
    "frem",
    "frms",
    "inverted_dot_product",
    "over_parents",
    "self_attention",
    "squash",
    "variational",
]
