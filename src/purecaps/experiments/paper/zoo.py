"""Every capsule network, on equal terms: one trainer, one machine, each by its authors' recipe.

The systems of tables 1 and 3, Efficient-CapsNet and inverted dot-product attention routing, each on MNIST and CIFAR-10,
beside the paper's networks by the paper's recipe and by ours, and plain CNNs. What an authors' recipe takes in hours is
cut to a budget of steps, with its schedule; systems.py has the budgets. MNIST has three seeds where a training takes
less than five minutes and else one, CIFAR-10 one seed. Trainings may share a device: how long a step is, alone, is
measured apart, by the job `steps`, and budgets follow from it.

Command: purecaps reproduce zoo
Time: about 174 minutes on one H200
Result: on MNIST most systems within 0.2 points of their published errors, at ten to a hundred times the training time
    of pcapsnet0; on CIFAR-10 most well above them, since a tenth or less of the authors' steps is taken; none of this
    was measured before
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper import system
from purecaps.experiments.paper.cells import NONE, error_text, plain
from purecaps.experiments.paper.comparison import difference
from purecaps.experiments.paper.contenders import OTHERS, Contender, Cost, contenders, cost_of, shared_hardware
from purecaps.experiments.paper.entry import Entry, Picture, Results, Row, Shown, Table
from purecaps.experiments.paper.job import Job, Record
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.steps import NAME as STEPS
from purecaps.experiments.paper.steps import StepsJob
from purecaps.experiments.paper.systems import SYSTEMS
from purecaps.experiments.paper.trade_offs import ROUTED, Point, trade_offs
from purecaps.experiments.paper.verdict import Sample, learned

TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
CLAIMED = {"mnist": "pcapsnet0", "cifar10": "pcapsnet4"}
COLUMNS = (
    "network",
    "parameters",
    "published, %",
    "ours, %",
    "steps",
    "batch",
    "ms a step",
    "training, s",
    "peak, MiB",
)
LEAST_ERROR = 0.01  # an image of 10,000: on a logarithmic scale there is no 0
NOTE = (
    "Final iterate, mean ± standard deviation over seeds. parameters: those that classify an image, without decoders, "
    "which serve training only; docs/zoo.md sets them beside the published ones. steps: ours of the authors', whose "
    "schedule shrinks with them; ours alone where theirs are not known. batch 10 × 128: ten networks were trained side "
    "by side. All are in TF32 but for the CNN baseline on MNIST, in bfloat16. Time and memory are one network's, or "
    "its share of those. Where a record has no time of a step, training time is divided by steps."
)
APART = "†"
APART_NOTE = (
    f" {APART}: measured apart, in a process that had the device to itself (zoo/steps.json), where the training shared "
    "it or did not record it; training time is then steps times that of a step."
)


def plan(scale: Scale) -> Sequence[Job]:
    jobs = [each.job(scale) for data in TITLES for each in contenders(data)]
    # The tiny scale is to show that it works, which a process of a few seconds for each network shows no better.
    timed = jobs if scale.images is None else [job for job in jobs if job.model == "lenet"][:1]
    both_ways = frozenset(system.name for system in SYSTEMS) if scale.images is None else frozenset[str]()
    return [*jobs, StepsJob(STEPS, scale.name, tuple(timed), both_ways)]


def show(results: Results) -> Shown:
    tables = tuple(_table(data, results) for data in TITLES)
    hardware = _hardware(results)
    points = {
        title: [_point(each, results, hardware) for each in contenders(data) if each.label]
        for data, title in TITLES.items()
    }
    picture = Picture(
        "trade-offs",
        trade_offs(points),
        "Test error of every network against its parameters and against its training time, on MNIST and CIFAR-10.",
        "Means over seeds, by the authors' recipes at the budgets of the table; P-CapsNets by the paper's recipe. Ours "
        "are filled, with the parameters that classify an image; published figures are hollow, with the parameters "
        f"published, and a line joins the two. Times are the tables', on {hardware or 'what it is first trained on'}.",
    )
    return Shown(tables, (picture,), tuple(text for data in TITLES for text in _findings(data, results)))


def _table(data: str, results: Results) -> Table:
    hardware = _hardware(results)
    rows = tuple(_row(each, results, hardware) for each in contenders(data))
    measured = (
        f" Both were measured on {hardware}; what was trained elsewhere has neither, nor what shared it and was not "
        "measured apart."
        if hardware
        else ""
    )
    if any(cell.text.endswith(APART) for row in rows for cell in row.cells):
        measured += APART_NOTE
    return Table(TITLES[data], COLUMNS, rows, COLUMNS[1:], f"{NOTE}{measured}{_sources(data)}")


def _row(each: Contender, results: Results, hardware: str | None) -> Row:
    record = results.get(each.full.name)
    texts = (
        each.text,
        f"{each.sizes[0]:,}",
        NONE if each.error is None else each.error.text(),
        error_text(results.values(each.full.name)),
    )
    recipe = each.full.recipe.as_dict() if record is None else record["what"]["recipe"]
    cost = _cost(record, results, hardware)
    if cost is None:
        return Row(plain(*texts, each.steps_text(recipe["steps"]), f"{recipe['batch_size']}", *3 * (NONE,)))
    costs = (
        each.steps_text(recipe["steps"]),
        (f"{cost.at_once} × " if cost.at_once > 1 else "") + f"{recipe['batch_size']}",
        f"{cost.ms:.3g}{APART if cost.apart else ''}",
        f"{cost.seconds:,.{1 if cost.seconds < 100 else 0}f}{APART if cost.apart else ''}",
        NONE if cost.memory is None else f"{cost.memory / 2**20:,.0f}{APART if cost.memory_apart else ''}",
    )
    return Row(plain(*texts, *costs))


def _cost(record: Record | None, results: Results, hardware: str | None) -> Cost | None:
    return None if record is None or hardware is None else cost_of(record, hardware, results.get(STEPS))


def _point(each: Contender, results: Results, hardware: str | None) -> Point:
    record = results.get(each.full.name)
    published = None
    if each.error is not None and each.parameters is not None:
        published = (each.parameters, each.error.value)
    point = Point(each.label, each.family, each.sizes[0], published=published)
    if record is None:
        return point
    values = results.values(each.full.name)
    error = max(Sample(learned(values) or values).mean, LEAST_ERROR)
    cost = _cost(record, results, hardware)
    return Point(each.label, each.family, each.sizes[0], error, None if cost is None else cost.seconds, published)


def _sources(data: str) -> str:
    """Who published what, where it is not the paper's own table."""
    found: dict[str, list[str]] = {}
    for each in contenders(data):
        if each.error is not None and not each.error.source.startswith("Table"):
            found.setdefault(each.error.source, []).append(each.text)
    texts = (f"{', '.join(names)}: {source}" for source, names in found.items())
    return f" Published figures are those of the paper's tables, but for {'; '.join(texts)}." if found else ""


def _hardware(results: Results) -> str | None:
    """One for both data sets, whose pictures stand beside each other."""
    records = (results.get(each.full.name) for data in TITLES for each in contenders(data))
    return shared_hardware(record for record in records if record is not None)


def _apart(other: Contender, each: Contender, results: Results) -> bool:
    found = difference(results.values(other.full.name), results.values(each.full.name))
    return found is not None and found.told_apart


def _findings(data: str, results: Results) -> tuple[str, ...]:
    sentences = [*system.findings(OTHERS[data], results, f"on {TITLES[data]}")]
    run = [(each, _point(each, results, None)) for each in contenders(data) if results.get(each.full.name) is not None]
    routed = [(other, point.error) for other, point in run if other.family == ROUTED and point.error is not None]
    for each, point in run:
        # One of the paper's by its own recipe, and not whichever errs least on the test set.
        if each.label == CLAIMED[data] and point.error is not None and routed:
            above = [other for other, error in routed if error > point.error]
            apart = [_apart(other, each, results) for other in above]
            sentences.append(
                f"{TITLES[data]}: {each.text}, with {each.sizes[0]:,} parameters, errs by {point.error:.2f} %, less "
                f"than {len(above)} of {len(routed)} networks with routing at their budgets; {sum(apart)} of those "
                f"{'is' if sum(apart) == 1 else 'are'} told apart from it by their seeds."
            )
    return tuple(sentences)


ENTRY = Entry("zoo", "Every capsule network, on equal terms", "beyond the paper", __doc__, plan, show)
