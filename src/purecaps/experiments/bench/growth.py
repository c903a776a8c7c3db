"""How cost grows: with the batch, the image's side, the number of capsules, the number of layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from purecaps.errors import unknown_name
from purecaps.experiments.bench.contenders import Way
from purecaps.experiments.bench.run import Report, Session, Settings, check_request
from purecaps.experiments.bench.subjects import Subject, layers_of, of_layers, registered
from purecaps.models import Layer

# What is varied, and what its values count.
AXES = {"batch": "batch", "size": "image side, pixels", "capsules": "capsules, times", "depth": "layers"}
# Times the usual value; for depth, layers added between each two of the paper's.
FACTORS: dict[str, dict[str, tuple[int, ...]]] = {
    "cpu": {"batch": (1, 2, 4, 8), "size": (1, 2, 4), "capsules": (1, 2, 4), "depth": (0, 1, 2, 4)},
    "cuda": {"batch": (1, 4, 16, 64), "size": (1, 2, 4, 8), "capsules": (1, 2, 4, 8), "depth": (0, 1, 2, 4)},
}


@dataclass(frozen=True)
class Point:
    """A network and a batch on the way up.

    Args:
        value: what is varied, as the table shows it.
        subject: the network.
        batch: images in a call.
        multiply_adds: of one call's forward pass.
    """

    value: int
    subject: Subject
    batch: int
    multiply_adds: int


@dataclass(frozen=True)
class Growth:
    """One contender's cost along an axis.

    Args:
        axis: what is varied, of `AXES`.
        model: the network that is varied.
        mode: what is timed.
        contender: how.
        batch: images in a call, the least of them where the batch is varied.
        values: along the axis.
        ms: shortest times, None where there is none.
        multiply_adds: of a call's forward pass.
    """

    axis: str
    model: str
    mode: str
    contender: str
    batch: int
    values: tuple[int, ...]
    ms: tuple[float | None, ...]
    multiply_adds: tuple[int, ...]

    @property
    def exponent(self) -> float | None:
        """e in cost ~ value^e, fitted to all that was measured; None for fewer than two points."""
        return exponent(self._measured())

    @property
    def exponent_at_end(self) -> float | None:
        """Likewise of the last two points, where fixed costs weigh least."""
        return exponent(self._measured()[-2:])

    @property
    def exponent_of_arithmetic(self) -> float | None:
        """Likewise of the multiplications: how cost would grow if nothing else took time."""
        return exponent(list(zip(self.values, self.multiply_adds, strict=True)))

    def _measured(self) -> list[tuple[float, float]]:
        return [(value, ms) for value, ms in zip(self.values, self.ms, strict=True) if ms is not None]


def exponent(points: Sequence[tuple[float, float]]) -> float | None:
    """The slope of the straight line through points in double logarithmic scale, by least squares."""
    if len(points) < 2:
        return None
    xs, ys = ([math.log(each) for each in column] for column in zip(*points, strict=True))
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    products = sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True))
    return products / sum((x - x_mean) ** 2 for x in xs)


def grow(
    axes: Sequence[str],
    models: Sequence[str],
    mode: str,
    batch: int,
    ways: Sequence[Way],
    settings: Settings,
    record: Callable[[Report], None] = lambda report: None,
) -> tuple[Report, list[Growth]]:
    """Times networks that become larger along each axis.

    Args:
        axes: of `AXES`.
        models: registered P-CapsNets to begin with.
        mode: what to time.
        batch: images in a call, to begin with.
        ways: contenders.
        settings: how to measure.
        record: told what has been found after each point.
    """
    for axis in axes:
        if axis not in AXES:
            raise unknown_name("axis", axis, AXES)
    check_request({mode: [batch]}, ways)
    session = Session(settings)
    growths = []
    for axis in axes:
        for model in models:
            steps = points(axis, model, batch, FACTORS[settings.device.type][axis])
            found: dict[str, list[float | None]] = {}
            for step in steps:
                for row in session.measure(step.subject, mode, step.batch, ways):
                    found.setdefault(row.contender, []).append(row.min_ms)
                record(session.report)
            values, work = tuple(step.value for step in steps), tuple(step.multiply_adds for step in steps)
            growths += [Growth(axis, model, mode, name, batch, values, tuple(ms), work) for name, ms in found.items()]
    return session.report, growths


def points(axis: str, model: str, batch: int, factors: Sequence[int]) -> list[Point]:
    """The networks along an axis.

    Args:
        axis: of `AXES`.
        model: the registered P-CapsNet to begin with.
        batch: images in a call; where the batch is varied, to begin with.
        factors: times the usual value; for depth, layers added between each two.
    """
    usual = registered(model)
    network = usual.build("reference", False)
    channels, height, width = network.in_shape
    layers = layers_of(network)
    found = []
    for factor in factors:
        subject, value, images = usual, factor, batch
        if axis == "batch":
            value = images = batch * factor
        elif axis == "size":
            value, shape = height * factor, (channels, height * factor, width * factor)
            subject = of_layers(f"{model}, {shape[1]}x{shape[2]}", layers, shape)
        elif axis == "capsules":
            more = [*(replace(layer, out=(layer.out or 1) * factor) for layer in layers[:-1]), layers[-1]]
            subject = of_layers(f"{model}, capsules x{factor}", more, network.in_shape)
        else:
            more = deepened(layers, factor)
            value, subject = len(more), of_layers(f"{model}, {len(more)} layers", more, network.in_shape)
        work = subject.build("reference", False).multiply_adds() * images
        found.append(Point(value, subject, images, work))
    return found


def deepened(layers: Sequence[Layer], added: int) -> list[Layer]:
    """The layers with others between each two that keep the map and the capsules as they are.

    Args:
        layers: a network's.
        added: how many between each two.
    """
    deeper = [layers[0]]
    for below, above in itertools.pairwise(layers):
        between = Layer(below.out, above.n, above.n or 1, padding=1, g=above.g)
        deeper += [between] * added + [above]
    return deeper
