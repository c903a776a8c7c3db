"""What a benchmark sets side by side: ways to run one network, and a plain CNN of the same size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from purecaps.errors import unknown_name
from purecaps.experiments.bench import naive, plain_cnn
from purecaps.experiments.bench.case import Case
from purecaps.experiments.bench.tasks import MODES, Classifier, Loss, OwnLoss, Scores
from purecaps.inference import compile_inference


@dataclass(frozen=True)
class Entrant:
    """A contender made ready for a case.

    Args:
        function: what is timed: images to scores, images and labels to the loss, or bytes to classes.
        network: the network inside it, whose weights are trained.
        note: what the record says of it.
    """

    function: Callable[..., Tensor]
    network: nn.Module
    note: str = ""


@dataclass(frozen=True)
class Contender:
    """One way to run a network.

    Args:
        name: what the table calls it.
        make: makes it ready for a case.
        exact: whether it computes the same function as the others, so that it is held against the specification.
        compiled: whether torch.compile is asked, which takes a while.
        own: whether it trains with this library's optimiser and not with torch's.
        modes: what it can do.
        devices: the kinds of device it runs on.
    """

    name: str
    make: Callable[[Case], Entrant]
    exact: bool = True
    compiled: bool = False
    own: bool = False
    modes: tuple[str, ...] = MODES
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass(frozen=True)
class Way:
    """A contender, launched operation by operation or, on CUDA, as one graph."""

    contender: Contender
    graph: bool = False

    @property
    def name(self) -> str:
        return f"{self.contender.name} graph" if self.graph else self.contender.name


def timed(network: nn.Module, case: Case, *, own: bool = False) -> nn.Module:
    """The function of a network that a case times."""
    if case.mode == "inference":
        return Classifier(network, case.dtype)
    bf16 = case.precision == "bf16"
    if case.mode == "forward":
        return Scores(network, bf16=bf16)
    return OwnLoss(network, bf16=bf16) if own else Loss(network, bf16=bf16)


def _by_impl(impl: str, *, own: bool = False) -> Callable[[Case], Entrant]:
    def make(case: Case) -> Entrant:
        network = case.build(impl)
        return Entrant(timed(network, case, own=own), network)

    return make


def _naive(case: Case) -> Entrant:
    naive.add_to_registry()
    return _by_impl("naive")(case)


def _compiled(mode: str) -> Callable[[Case], Entrant]:
    def make(case: Case) -> Entrant:
        network = case.build("conv")
        return Entrant(torch.compile(timed(network, case), mode=mode, dynamic=False), network)

    return make


def _inference(impl: str) -> Callable[[Case], Entrant]:
    def make(case: Case) -> Entrant:
        network = case.build("conv", torch.float32)
        function = compile_inference(network, impl=impl, precision=case.precision, output="class")
        return Entrant(function, network, f"took {function.impl}" if impl == "auto" else "")

    return make


def _cnn(case: Case) -> Entrant:
    network = plain_cnn.like(case.specification).to(case.device, case.dtype)
    return Entrant(timed(network, case), network)


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("naive", _naive),
        Contender("conv", _by_impl("conv")),
        Contender("compile", _compiled("default"), compiled=True),
        # Without graphs of its own: ours hold the whole step, which is at least as fast and can be compared.
        Contender("max-autotune", _compiled("max-autotune-no-cudagraphs"), compiled=True, devices=("cuda",)),
        Contender("cpu", _by_impl("cpu"), devices=("cpu",)),
        Contender("triton", _by_impl("triton", own=True), own=True, devices=("cuda",)),
        Contender("compile_inference", _inference("auto"), modes=("inference",)),
        Contender("layers", _inference("triton"), modes=("inference",), devices=("cuda",)),
        Contender("one kernel", _inference("network"), modes=("inference",), devices=("cuda",)),
        Contender("cnn", _cnn, exact=False),
    )
}
# Left out unless asked for: ways that nobody would choose.
_UNUSUAL = ("naive graph", "max-autotune", "triton", "compile_inference", "layers", "one kernel", "cnn")


def offered(device_type: str) -> list[Way]:
    """Every way to run a network on a kind of device, contender by contender."""
    here = [contender for contender in CONTENDERS.values() if device_type in contender.devices]
    graphs = (False, True) if device_type == "cuda" else (False,)
    return [Way(contender, graph) for contender in here for graph in graphs]


def usual(device_type: str) -> list[Way]:
    """Those that are compared where none are named."""
    ways = offered(device_type)
    return [way for way in ways if way.name not in _UNUSUAL] if device_type == "cuda" else ways


def parse(names: Iterable[str], device_type: str) -> list[Way]:
    """Ways by name, such as "conv graph"."""
    known = {way.name: way for way in offered(device_type)}
    for name in names:
        if name not in known:
            raise unknown_name(f"contender on {device_type}", name, known)
    return [known[name] for name in names]
