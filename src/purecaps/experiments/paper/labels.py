"""Names beside the points of a picture, placed so that none lies on another or on a point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from purecaps.evaluate.style import INK

# All lengths are in points, of which an inch has 72.
SIZE = 7.0  # of the letters
MARKER = 3.5  # half of what a point's marker takes up
NEAR = 5.0  # from a point to a name that needs no line to it
DISTANCES = (NEAR, 10.0, 16.0, 23.0, 31.0, 40.0, 50.0, 62.0, 76.0, 92.0)
TURNS = 24
CROSSING = 20.0  # crossing a line is as bad as covering so many square points
MISLEADING = 60.0  # likewise, being nearer to another point than to one's own

Place = tuple[float, float]
Way = tuple[Place, Place]


@dataclass(frozen=True)
class Named:
    """A point in data coordinates, with its name and the name's colour."""

    x: float
    y: float
    text: str
    colour: str


@dataclass
class _Page:
    """What is on the page already: places of points, names, and lines."""

    frame: Bbox
    marks: list[Place]
    lines: list[Way]
    names: list[Bbox] = field(default_factory=list)

    def cost(self, box: Bbox, place: Place) -> float:
        """How much a name of the point at `place` would disturb there; 0 where it would not."""
        covered = sum(_common(box, other) for other in self.names)
        covered += sum(_common(box, _around(mark)) for mark in self.marks)
        covered += CROSSING * sum(_crosses(line, box) for line in self.lines)
        way = math.dist(place, _nearest(box, place))
        if way > NEAR + 1:
            covered += CROSSING * sum(_crosses((place, _nearest(box, place)), other) for other in self.names)
        elif any(mark != place and math.dist(mark, _nearest(box, mark)) < way for mark in self.marks):
            covered += MISLEADING
        return covered


def name_points(
    axes: Axes,
    points: Sequence[Named],
    *,
    others: Sequence[Place] = (),
    lines: Sequence[Way] = (),
) -> None:
    """Writes each point's name as near to it as there is room, with a thin line to it where that is not beside it.

    The axes must have the limits and the place that they will be drawn with.

    Args:
        axes: where the points are drawn.
        points: those with names.
        others: points without, which are not to be covered either.
        lines: what names are not to lie across, from one point to another.
    """
    figure = axes.figure
    assert isinstance(figure, Figure)
    unit = figure.get_dpi() / 72  # pixels a point
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]

    def on_page(place: Place) -> Place:
        x, y = axes.transData.transform(place) / unit
        return float(x), float(y)

    def in_data(place: Place) -> Place:
        x, y = axes.transData.inverted().transform((place[0] * unit, place[1] * unit))
        return float(x), float(y)

    places = [on_page((each.x, each.y)) for each in points]
    page = _Page(
        frame=Bbox(axes.get_window_extent(renderer).get_points() / unit),
        marks=[*places, *map(on_page, others)],
        lines=[(on_page(start), on_page(end)) for start, end in lines],
    )
    # Where it is crowded first: those in the open find room anyway.
    for index in sorted(range(len(points)), key=lambda i: -sum(math.dist(places[i], each) < 60 for each in places)):
        named, place = points[index], places[index]
        text = axes.annotate(
            named.text,
            (named.x, named.y),
            (0, 0),
            textcoords="offset points",
            ha="center",
            va="center",
            fontsize=SIZE,
            color=named.colour,
        )
        extent = text.get_window_extent(renderer)
        box = _best(page, place, extent.width / unit, extent.height / unit)
        text.set_position(((box.x0 + box.x1) / 2 - place[0], (box.y0 + box.y1) / 2 - place[1]))
        page.names.append(box)
        end = _nearest(box, place)
        if math.dist(end, place) > NEAR + 1:
            page.lines.append((place, end))
            xs, ys = zip((named.x, named.y), in_data(end), strict=True)
            axes.plot(xs, ys, color=INK, alpha=0.45, linewidth=0.5, zorder=1, scalex=False, scaley=False)


def _best(page: _Page, place: Place, width: float, height: float) -> Bbox:
    """The nearest box of that size that disturbs nothing; where there is none, the one that disturbs least."""
    best, least = Bbox.from_bounds(*place, width, height), math.inf
    for distance in DISTANCES:
        for turn in range(TURNS):
            towards = math.cos(2 * math.pi * turn / TURNS), math.sin(2 * math.pi * turn / TURNS)
            # The box touches a circle around the point; straight above or below, it is centred on it.
            x = place[0] + distance * towards[0] + width / 2 * max(-1.0, min(1.0, 3 * towards[0]))
            y = place[1] + distance * towards[1] + height / 2 * max(-1.0, min(1.0, 3 * towards[1]))
            box = Bbox.from_bounds(x - width / 2, y - height / 2, width, height)
            if box.x0 < page.frame.x0 or box.x1 > page.frame.x1 or box.y0 < page.frame.y0 or box.y1 > page.frame.y1:
                continue
            cost = page.cost(box, place)
            if cost == 0:
                return box
            if cost < least:
                best, least = box, cost
    return best


def _around(place: Place) -> Bbox:
    return Bbox.from_bounds(place[0] - MARKER, place[1] - MARKER, 2 * MARKER, 2 * MARKER)


def _nearest(box: Bbox, place: Place) -> Place:
    return float(min(max(place[0], box.x0), box.x1)), float(min(max(place[1], box.y0), box.y1))


def _common(one: Bbox, other: Bbox) -> float:
    """The area that two boxes share, in square points, where a point is to be left between them."""
    width = float(min(one.x1, other.x1) - max(one.x0, other.x0) + 1)
    height = float(min(one.y1, other.y1) - max(one.y0, other.y0) + 1)
    return max(width, 0.0) * max(height, 0.0)


def _crosses(line: Way, box: Bbox, parts: int = 20) -> bool:
    (x0, y0), (x1, y1) = line
    shares = (part / parts for part in range(parts + 1))
    return any(
        box.x0 <= x0 + share * (x1 - x0) <= box.x1 and box.y0 <= y0 + share * (y1 - y0) <= box.y1 for share in shares
    )
