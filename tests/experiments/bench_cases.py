"""What the tests of the benchmark share: a small network, and contenders that are wrong on purpose."""

import torch

from purecaps import Layer
from purecaps.experiments.bench import Contender, Settings, Way
from purecaps.experiments.bench.contenders import Entrant, timed
from purecaps.experiments.bench.floors import Rates
from purecaps.experiments.bench.subjects import of_layers
from purecaps.ops import conv, registry

CPU = torch.device("cpu")
QUICK = Settings(CPU, rounds=2)
# Odd sizes, a refold, padding: 9x9 -> 4x4 -> 4x4 -> 2x2.
LAYERS = [Layer(1, None, 6, stride=2), Layer(2, 2, 5, padding=1), Layer(None, 5, 3)]
SMALL = of_layers("small", LAYERS, (1, 9, 9))


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, v, factor):
        ctx.factor = factor
        return v.clone()

    @staticmethod
    def backward(ctx, grad):
        return ctx.factor * grad, None


def _wrong_forward(u, w, geometry, slope, chunk):
    return 1.001 * conv.caps_block(u, w, geometry, slope, chunk)


def _wrong_backward(u, w, geometry, slope, chunk):
    return _ScaledGradient.apply(conv.caps_block(u, w, geometry, slope, chunk), 1.05)


def _slightly_wrong_backward(u, w, geometry, slope, chunk):
    return _ScaledGradient.apply(conv.caps_block(u, w, geometry, slope, chunk), 1.001)


def _another_slope(u, w, geometry, slope, chunk):
    return conv.caps_block(u, w, geometry, 2 * slope, chunk)


def _too_large(u, w, geometry, slope, chunk):
    torch.empty(2**52, dtype=torch.uint8, device=u.device)


def _broken(u, w, geometry, slope, chunk):
    raise RuntimeError("the kernel is on fire\nand more lines")


BLOCKS = {
    "wrong forward": _wrong_forward,
    "wrong backward": _wrong_backward,
    "slightly wrong backward": _slightly_wrong_backward,
    "another slope": _another_slope,
    "too large": _too_large,
    "broken": _broken,
}


def hurry(monkeypatch):
    """Short turns, and a machine whose rates are known."""
    monkeypatch.setattr("purecaps.experiments.bench.timing.LEAST_SECONDS", 1e-3)
    monkeypatch.setattr("purecaps.experiments.bench.run.measured_rates", lambda device, precision: Rates(1e11, 1e10))


def odd_one(name, **options):
    """A way to run networks with one of `BLOCKS`."""

    def make(case):
        if name not in registry.names():
            registry.register(registry.Implementation(name, conv.caps_conv2d, BLOCKS[name], automatic=registry.never))
        network = case.build(name)
        return Entrant(timed(network, case), network)

    return Way(Contender(name, make, **options))
