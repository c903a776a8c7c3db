"""The systems of other authors: how they are trained, what they cost, and the picture of all."""

import itertools
import json

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from paper_cases import workplace

from purecaps.experiments.paper import ENTRIES, system, table1, table3, zoo
from purecaps.experiments.paper.contenders import contenders, cost_of, shared_hardware
from purecaps.experiments.paper.entry import Results
from purecaps.experiments.paper.job import keep
from purecaps.experiments.paper.labels import Named, name_points
from purecaps.experiments.paper.report import write_report
from purecaps.experiments.paper.runner import select
from purecaps.experiments.paper.scale import FULL, TINY
from purecaps.experiments.paper.steps import settings_of
from purecaps.experiments.paper.system import count_text, size_of
from purecaps.experiments.paper.systems import SYSTEMS, TABLE1, TABLE3
from purecaps.experiments.paper.trade_offs import PURE, Point, trade_offs
from purecaps.models import create_model

VERSIONS = {"purecaps": "0", "commit": "0", "torch": "0", "python": "0", "platform": "0", "hardware": "NVIDIA H200"}
BY_NAME = {each.name: each for each in SYSTEMS}


def record(job, place, errors, *, seconds=100.0, parameters=1, **costs):
    runs = [{"seed": seed, "test_error": error, "train_error": 0.01} for seed, error in enumerate(errors)]
    if job.averaging:
        runs = [{**run, "averaged": {"mirrored too": 1.0, "18 views": 1.0}} for run in runs]
    part = {
        "seeds": list(range(len(errors))),
        "command": job.command,
        "train_seconds": seconds,
        "finished": "2026-11-16",
    }
    keep(job, place, {"runs": runs, "parts": [{**part, "parameters": parameters, "versions": VERSIONS, **costs}]})


def cells_of(table, name):
    (row,) = [row for row in table.rows if row.cells[0].text == name]
    return dict(zip(table.columns, (cell.text for cell in row.cells), strict=True))


def test_one_pattern_picks_the_other_authors_systems_and_nothing_else():
    found = [job.name for job in select(ENTRIES.values(), FULL, only="*zoo*")]
    assert sorted(found) == sorted([*BY_NAME, "zoo/steps"]), "and how long their steps are"
    assert len(BY_NAME) == len(SYSTEMS)


def test_the_tables_have_as_many_systems_as_the_papers():
    assert (len(TABLE1), len(TABLE3)) == (6, 9)
    assert all(each.error is not None and each.parameters is not None for each in (*TABLE1, *TABLE3))


@pytest.mark.parametrize("each", SYSTEMS, ids=lambda each: each.name)
def test_a_system_is_trained_by_its_whole_recipe_in_the_steps_of_its_budget(each):
    job, whole = each.job(FULL), each.whole
    assert job.recipe.steps == each.steps <= whole.steps
    assert job.recipe.step_every == pytest.approx(whole.step_every * each.steps / whole.steps, abs=0.5)
    assert job.recipe.precision == "tf32", "times are compared"
    same = {"steps": 0, "step_every": 0, "checkpoint_every": 0, "precision": 0}
    assert job.recipe.as_dict() | same == whole.as_dict() | same
    assert job.recipe.precision == "tf32" or each.recipe == "cnn"
    assert not job.together


def test_mnist_has_three_seeds_where_a_training_takes_less_than_five_minutes():
    assert {each.seeds for each in SYSTEMS if each.data == "cifar10"} == {1}
    for each in (each for each in SYSTEMS if each.data == "mnist"):
        assert each.seeds == (3 if each.ms * each.steps < 300_000 else 1)
        left = each.seeds * (20 + each.ms * each.steps / 1000)
        assert each.job(FULL).seconds_left(None) == pytest.approx(left), "seeds are trained one by one"


def test_a_tiny_scale_takes_two_steps_on_four_images():
    for each in SYSTEMS:
        job = each.job(TINY)
        assert (job.recipe.steps, job.recipe.batch_size, job.images, job.seeds, job.scale) == (2, 2, 4, 1, "tiny")
        assert job.model == {"cnn_baseline": "lenet"}.get(each.model, each.model)


def test_parameters_are_counted_without_and_with_the_decoder():
    network = create_model("efficient_capsnet")
    decoder = sum(parameter.numel() for parameter in network.decoder.parameters())
    whole = sum(parameter.numel() for parameter in network.parameters())
    assert size_of("efficient_capsnet", "mnist", ("cutout:4",)) == (whole - decoder, whole)
    assert size_of("capsnet_dr_cifar", "cifar10", ("crop:24",)) < size_of("capsnet_dr_cifar", "cifar10", ())
    assert [count_text(each) for each in (13.4e6, 6.8e6, 320e3, 3888)] == ["13.4M", "6.8M", "320K", "3.89K"]


def test_a_row_is_quoted_until_it_has_been_run(digits, tmp_path):
    place = workplace(tmp_path, digits)
    before = table1.show(Results(place.results))
    assert cells_of(before.tables[0], "DCNet, dynamic routing") == {
        "network": "DCNet, dynamic routing", "parameters": "11.8M", "trained by": "–", "paper, %": "0.25",
        "ours, %": "not run yet", "training error, %": "–", "verdict": "quoted",
    }  # fmt: skip
    dcnet, dcnetpp = BY_NAME["table1/zoo-dcnet"], BY_NAME["table1/zoo-dcnetpp"]
    record(dcnet.job(FULL), place, [0.30, 0.31, 0.32], parameters=11_886_370)
    record(dcnetpp.job(FULL), place, [0.29])
    after = table1.show(Results(place.results))
    assert cells_of(after.tables[0], "DCNet, dynamic routing") == {
        "network": "DCNet, dynamic routing", "parameters": "11,886,370",
        "trained by": f"its authors', {dcnet.steps:,} of 30,000 steps", "paper, %": "0.25",
        "ours, %": "0.31 ± 0.01 (3 seeds)", "training error, %": "0.01", "verdict": "worse by 0.06; overfits: training error 0.01 %",
    }  # fmt: skip
    trained_by = cells_of(after.tables[0], "DCNet++, dynamic routing")["trained by"]
    assert trained_by == f"its authors', {dcnetpp.steps:,} steps", "how many its authors took is not known"
    assert after.findings == (
        "Of 2 systems of other authors on MNIST, at the budgets given, 1 reaches the published figure (DCNet++, dynamic routing).",
    )


def test_a_verdict_says_what_is_not_comparable(digits, tmp_path):
    place = workplace(tmp_path, digits)
    for name in ("table3/zoo-capsnet-dr", "table3/zoo-frms"):
        record(BY_NAME[name].job(FULL), place, [20.0])
    table = table3.show(Results(place.results)).tables[0]
    verdict = cells_of(table, "CapsNets, dynamic (3), 7 of them")["verdict"]
    assert verdict == (
        "worse by 9.40, of one seed; overfits: training error 0.01 %; one network, where the published figure is of 7 "
        "together"
    )
    assert cells_of(table, "FRMS, fast dynamic (2)")["verdict"].endswith("; the network is a reconstruction")
    assert cells_of(table, "FRMS, fast dynamic (2)")["trained by"].startswith("ours, ")


def test_a_recipe_with_milestones_is_told_in_the_report(digits, tmp_path):
    place = workplace(tmp_path, digits)
    record(BY_NAME["zoo/idpa-capsnet-cifar10"].job(FULL), place, [7.0])
    text = write_report(Results(place.results), [ENTRIES["zoo"]])[0].read_text()
    assert ", milestones 0.429 0.714, " in text


PART = {"seeds": [0, 1, 2, 3], "train_seconds": 40.0}


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # Four side by side share 0.8 ms and 4,000 bytes.
        ([PART | {"side_by_side": 4, "seconds_per_step": 0.0008, "peak_memory_bytes": 4000}], (10, 0.2, 1000, 4)),
        # One after the other in one sitting: each had the device for itself.
        ([PART | {"side_by_side": 1, "seconds_per_step": 0.0008, "peak_memory_bytes": 4000}], (10, 0.8, 4000, 1)),
        # Each in a sitting of its own.
        (
            [
                {"seeds": [seed], "train_seconds": taken, "side_by_side": 1, "seconds_per_step": taken / 2e4,
                 "peak_memory_bytes": 100 + seed}
                for seed, taken in enumerate((8, 12))
            ],
            (10, 0.5, 101, 1),
        ),
        # Older records, on a CPU too, have no more than this.
        ([PART], (10, 0.5, None, 4)),
        ([PART | {"side_by_side": 4, "seconds_per_step": None, "peak_memory_bytes": None}], (10, 0.5, None, 4)),
    ],
)  # fmt: skip
def test_costs_are_one_networks(parts, expected):
    parts = [part | {"versions": VERSIONS} for part in parts]
    cost = cost_of({"parts": parts, "what": {"recipe": {"steps": 20_000}}}, "NVIDIA H200")
    assert (cost.seconds, cost.ms, cost.memory, cost.at_once) == pytest.approx(expected)


def on(hardware, seeds, seconds):
    return {"seeds": list(seeds), "train_seconds": seconds, "versions": VERSIONS | {"hardware": hardware}}


def test_costs_are_those_of_the_hardware_that_most_networks_share():
    both = {"parts": [on("a GPU", range(8), 80), on("a CPU, 2 threads", range(8, 10), 5000)]}
    one = {"parts": [on("a GPU", [0], 6), on("a GPU", range(1, 4), 30)]}
    elsewhere = {"parts": [on("a CPU, 2 threads", [0], 900)]}
    assert shared_hardware([both, one]) == "a GPU"
    assert shared_hardware([]) is None
    for record, seconds in ((both, 10.0), (one, 9.0)):
        assert cost_of(record | {"what": {"recipe": {"steps": 100}}}, "a GPU").seconds == pytest.approx(seconds)
    beside = {"parts": [on("a GPU", [0], 6) | {"beside_others": True}]}
    for record in (elsewhere, beside):
        assert cost_of(record | {"what": {"recipe": {"steps": 100}}}, "a GPU") is None


@pytest.fixture
def everything(digits, tmp_path):
    """Made-up records of all networks, some of them close together."""
    place = workplace(tmp_path, digits)
    for number, each in enumerate([*contenders("mnist"), *contenders("cifar10")]):
        published = each.error.value if each.error else 0.4 if each.full.data == "mnist" else 15.0
        errors = [published * (1.05 + 0.07 * (number % 5))] * each.full.seeds
        costs = {"side_by_side": 1, "seconds_per_step": 0.0123, "peak_memory_bytes": 3 << 20}
        seconds = each.full.seeds * (5.0 + 20 * (number % 7))
        record(each.full, place, errors, seconds=seconds, parameters=each.sizes[1], **costs)
    return Results(place.results)


def test_the_zoos_table_has_sizes_errors_budgets_and_costs(everything):
    mnist, cifar = zoo.show(everything).tables
    efficient, steps = (
        cells_of(mnist, "Efficient-CapsNet, self-attention"),
        BY_NAME["zoo/efficient-capsnet-mnist"].steps,
    )
    assert efficient["parameters"] == "161,824"
    assert efficient["published, %"] == "0.26"
    assert efficient["steps"] == f"{steps:,} of 562,500"
    assert (efficient["ms a step"], efficient["peak, MiB"]) == ("12.3", "3")
    assert efficient["batch"] == "16"
    assert "CNN baseline: Sabour et al. 2017, Table 1" in mnist.note
    assert "Both were measured on NVIDIA H200;" in mnist.note
    for table, data in ((mnist, "mnist"), (cifar, "cifar10")):
        assert [row.cells[0].text for row in table.rows] == [each.text for each in contenders(data)]


def test_what_the_zoo_found_compares_the_papers_networks_with_the_routed(everything):
    texts = zoo.show(everything).findings
    assert any(text.startswith("MNIST: pcapsnet0, ") and "170,784 parameters" in text for text in texts)
    assert any(text.startswith("CIFAR-10: pcapsnet4, ") and "of 11 networks with routing" in text for text in texts)


def test_times_of_trainings_that_shared_their_device_are_marked_where_they_were_measured_apart(digits, tmp_path):
    place = workplace(tmp_path, digits)
    alone, measured, shared = (BY_NAME[f"zoo/{leaf}-mnist"].job(FULL) for leaf in ("frms", "frem", "mscaps"))
    costs = {"side_by_side": 1, "seconds_per_step": 0.0123, "peak_memory_bytes": 3 << 20}
    record(alone, place, [0.4], **costs)
    record(measured, place, [0.4], beside_others=True, **costs)
    record(shared, place, [0.4], beside_others=True, **costs)
    row = {
        "job": measured.name, "compiled": False, "networks": 1, "batch": 128, "ms": 2.0, "peak_memory_bytes": 1 << 20,
        "hardware": "NVIDIA H200", "of": settings_of(json.loads(json.dumps(measured.what()))),
    }  # fmt: skip
    (steps,) = (job for job in zoo.plan(FULL) if job.name == "zoo/steps")
    part = {"command": steps.command, "finished": "2026-11-18", "versions": VERSIONS}
    keep(steps, place, {"runs": [row], "parts": [part]})
    table = zoo.show(Results(place.results)).tables[0]
    columns = ("ms a step", "training, s", "peak, MiB")
    found = {text: [cells_of(table, text)[name] for name in columns] for text in (
        "FRMS, fast dynamic (2)", "FREM, fast dynamic (2)", "MS-Caps, dynamic routing"
    )}  # fmt: skip
    assert list(found.values()) == [
        ["12.3", "100", "3"],
        ["2†", f"{measured.recipe.steps * 0.002:.1f}†", "1†"],
        ["–", "–", "–"],
    ]
    assert "†: measured apart" in table.note
    page = write_report(Results(place.results), [ENTRIES["zoo"]])[0].read_text()
    assert "| zoo/steps | – | – | – | NVIDIA H200 |" in page, "where the numbers come from"


def names_in(axes):
    return [text for text in axes.texts if isinstance(text, Annotation)]


def assert_names_are_apart(figure: Figure):
    renderer = FigureCanvasAgg(figure).get_renderer()
    for axes in figure.axes:
        boxes = {text.get_text(): text.get_window_extent(renderer) for text in names_in(axes)}
        for (one, left), (other, right) in itertools.combinations(boxes.items(), 2):
            assert not left.overlaps(right), f"{one!r} lies on {other!r} in {axes.get_title('left')!r}"
        inside = axes.get_window_extent(renderer).padded(1)
        for name, box in boxes.items():
            assert inside.x0 <= box.x0 < box.x1 <= inside.x1, f"{name!r} leaves {axes.get_title('left')!r}"


def test_every_network_is_named_in_every_panel_and_no_name_lies_on_another(everything):
    (picture,) = zoo.show(everything).pictures
    assert_names_are_apart(picture.figure)
    for axes, data in zip(picture.figure.axes, ("mnist", "mnist", "cifar10", "cifar10"), strict=True):
        assert sorted(text.get_text() for text in names_in(axes)) == sorted(
            each.label for each in contenders(data) if each.label
        )


def test_before_anything_is_run_the_picture_has_what_was_published(tmp_path):
    (picture,) = zoo.show(Results(tmp_path)).pictures
    sizes, times, *_ = picture.figure.axes
    assert_names_are_apart(picture.figure)
    assert "DCNet++" in [text.get_text() for text in names_in(sizes)]
    assert "LeNet" not in [text.get_text() for text in names_in(sizes)], "no error of it was published"
    assert [text.get_text() for text in times.texts] == ["nothing recorded yet"]


@pytest.mark.parametrize("seconds", [(50.0,), (20.0, 60.0), (8.0, 300.0)])
def test_a_panel_of_any_width_has_a_scale(seconds):
    points = [Point(str(each), PURE, 1000, error=1.0, seconds=each) for each in seconds]
    figure = trade_offs({"MNIST": points})
    FigureCanvasAgg(figure).draw()
    for axes in figure.axes:
        low, high = axes.get_xlim()
        assert sum(low <= tick <= high for tick in axes.get_xticks()) >= 2


def test_names_in_a_crowd_move_away_and_are_joined_to_their_points():
    figure = Figure(figsize=(4, 4))
    axes = figure.add_subplot(xlim=(0, 10), ylim=(0, 10))
    points = [Named(5 + 0.1 * (i % 3), 5 + 0.1 * (i // 3), f"network {i}", "black") for i in range(9)]
    name_points(axes, points)
    assert len(names_in(axes)) == 9
    assert_names_are_apart(figure)
    assert len(axes.lines) >= 4, "names that are not beside their point have a line to it"


def test_published_counts_are_near_those_of_the_networks_where_the_network_is_public():
    known = {
        "table1/zoo-dcnetpp",
        "table3/zoo-capsnet-dr",
        "table3/zoo-attncaps",
        "table3/zoo-dcnet",
    }  # see docs/zoo.md
    for each in SYSTEMS:
        if each.parameters is not None and each.name not in known:
            small, whole = size_of(each.model, each.data, each.whole.augment)
            apart = min(abs(count / each.parameters - 1) for count in (small, whole))
            assert apart < 0.1, f"{each.name}: {small:,} or {whole:,}, published {each.parameters:,.0f}"


def test_a_job_of_the_zoo_is_plain_values():
    for each in SYSTEMS:
        assert json.loads(json.dumps(each.job(FULL).what()))["model"] == each.model
    assert system.LONG_SECONDS == 300
