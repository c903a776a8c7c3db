"""Every entry of the paper: says what it is, runs at a tiny scale, records and shows what it found."""

import json
import re
from pathlib import Path

import pytest
from paper_cases import SMALLER, workplace

from purecaps.errors import UnknownNameError
from purecaps.experiments import paper
from purecaps.experiments.paper import ENTRIES, get_entries, mnist, table3, table5
from purecaps.experiments.paper.entry import Results
from purecaps.experiments.paper.job import read
from purecaps.experiments.paper.report import write_report
from purecaps.experiments.paper.runner import run_jobs, select
from purecaps.experiments.paper.scale import FULL, TINY
from purecaps.experiments.paper.systems import TABLE1
from purecaps.experiments.paper.training import AVERAGED
from purecaps.models import create_model

EACH = pytest.mark.parametrize("entry", ENTRIES.values(), ids=ENTRIES)


def test_every_file_with_an_entry_is_listed():
    files = Path(paper.__file__).parent.glob("*.py")
    with_entry = {path.stem for path in files if re.search(r"^ENTRY = ", path.read_text(), re.MULTILINE)}
    assert with_entry == {entry.plan.__module__.rsplit(".", 1)[-1] for entry in ENTRIES.values()}


@EACH
def test_an_entry_opens_with_its_command_time_and_result(entry):
    assert entry.stated("Command") == f"purecaps reproduce {entry.name}"
    minutes = sum(job.seconds_left(None) for job in entry.plan(FULL)) / 60
    assert entry.stated("Time") == f"about {minutes:.0f} minutes on one H200"
    assert len(entry.stated("Result").split()) >= 5, "expected a sentence on what is expected"


@EACH
@pytest.mark.parametrize("scale", [FULL, TINY], ids=lambda scale: scale.name)
def test_a_plan_has_distinct_names_below_its_entries(entry, scale):
    jobs = entry.plan(scale)
    assert len({job.name for job in jobs}) == len(jobs) > 0
    for job in jobs:
        assert re.fullmatch(r"[a-z0-9-]+/[a-z0-9.-]+", job.name)
        assert job.entry in ENTRIES
        assert job.scale == scale.name


def some(name, only=None, *marks):
    return pytest.param(name, only, marks=marks, id=f"{name} {only or 'whole'}")


@pytest.mark.parametrize(
    ("name", "only"),
    [
        *(some(name) for name in ENTRIES if name not in ("ladder", "table1", "table3", "whitebox", "zoo")),
        # The other authors' networks of both tables are the zoo's jobs as well.
        some("table1", "pcapsnet*"),
        some("table3", "pcapsnet4-*"),
        some("zoo", "*-capsnet-mnist"),
        some("zoo", None, pytest.mark.slow),
        some("ladder", None, pytest.mark.slow),
        some("whitebox", None, pytest.mark.slow),
    ],
)
def test_an_entry_runs_at_a_tiny_scale(name, only, digits, tmp_path):
    entry = ENTRIES[name]
    jobs = select([entry], SMALLER, only=only)
    place = workplace(tmp_path, digits)
    tally = run_jobs(jobs, place)
    assert not tally.failed
    assert not tally.unfinished
    assert set(tally.done) | set(tally.impossible) == {job.name for job in jobs}
    assert all("cuda" in name for name in tally.impossible)
    for name in tally.done:
        record = read(place.results, name)
        for part in record["parts"]:
            assert part["command"].startswith(f"purecaps reproduce {name.split('/')[0]} --only {name.split('/')[1]}")
            assert {"hardware", "torch", "python", "commit", "purecaps"} <= part["versions"].keys()
    written = write_report(Results(place.results, SMALLER), [entry])
    page = written[1].read_text()
    assert ("not run yet" in page) == bool(tally.impossible or only)
    for picture in re.findall(r"\]\((.*\.png)\)", written[0].read_text()):
        assert (place.results / picture).stat().st_size > 5000


@EACH
def test_an_entry_is_shown_before_anything_has_been_run(entry, tmp_path):
    shown = entry.show(Results(tmp_path))
    assert any("not run yet" in cell.text for table in shown.tables for row in table.rows for cell in row.cells)
    assert not shown.findings


def test_the_papers_parameter_counts_are_those_of_the_networks():
    for model, count in {**mnist.PARAMETERS, "pcapsnet4": 364_896}.items():
        assert sum(parameter.numel() for parameter in create_model(model).parameters()) == count


def test_tables_1_and_2_share_what_they_train():
    names = [job.name for job in select(get_entries(["table1", "table2"]), FULL)]
    assert len(names) == len(set(names)) == 4 * 3 + 1 + len(TABLE1)


def test_the_recipes_of_table_3_are_the_papers_with_and_without_mirroring():
    paper, flip, best, *_ = table3.plan(FULL)
    assert flip.recipe == paper.recipe.replace(augment=("crop:24", "flip"))
    assert (paper.recipe.preprocess, paper.recipe.steps, paper.recipe.m_pos) == ("gcn_zca", 50_000, 0.6)
    assert best.recipe.preprocess == "standardise"


def test_each_rung_of_the_ladder_changes_the_one_it_names():
    by_name = {rung.name: rung for rung in paper.ladder.RUNGS}
    assert len(by_name) == len(paper.ladder.RUNGS)
    recipes = [json.dumps(paper.ladder.recipe_of(rung).as_dict()) for rung in by_name.values()]
    assert len(set(recipes)) == len(recipes), "two rungs are the same"
    assert {paper.ladder.recipe_of(rung).val_size for rung in by_name.values()} == {5000}
    entropy = paper.ladder.recipe_of(by_name["entropy"])
    ours = table3.RUNS["best"][1]
    assert entropy.replace(steps=ours.steps, val_size=0, precision="tf32").as_dict() | {
        "m_pos": 0, "step_every": 0
    } == ours.as_dict() | {"m_pos": 0, "step_every": 0}  # fmt: skip


def test_distilled_rungs_learn_from_a_network_that_has_not_seen_their_held_out_images():
    jobs = {job.leaf: job for job in paper.ladder.plan(FULL)}
    taught = {name for name, job in jobs.items() if job.teacher is not None}
    assert taught == {"distilled", "distilled-longer", "distilled-together"}
    for name in taught:
        job = jobs[name]
        assert job.teacher == jobs["teacher"]
        assert (job.teacher.data, job.teacher.recipe.val_size) == (job.data, job.recipe.val_size) == ("cifar10", 5000)


def test_the_ladder_says_what_its_teacher_reaches(digits, tmp_path):
    place = workplace(tmp_path, digits)
    run_jobs(select([ENTRIES["ladder"]], SMALLER, only="teacher"), place)
    (run,) = read(place.results, "ladder/teacher")["runs"]
    (finding,) = ENTRIES["ladder"].show(Results(place.results, SMALLER)).findings
    assert (
        f"errs by {run['val_error']:.2f} % of the held-out images and {run['test_error']:.2f} % of the test" in finding
    )


def test_the_ladder_names_the_best_rung_and_the_best_that_nothing_taught(tmp_path):
    def record(held_out, test, averaged):
        return {"runs": [{"val_error": held_out, "test_error": test, "averaged": dict.fromkeys(AVERAGED, averaged)}]}

    # By the test set it would be the other ones.
    records = {
        "ladder/muon": record(15.0, 14.1, 12.0),
        "ladder/muon-longer": record(14.5, 14.9, 11.5),
        "ladder/distilled": record(13.5, 13.0, 10.0),
        "ladder/distilled-longer": record(13.0, 13.5, 10.5),
    }
    best, untaught = ENTRIES["ladder"].show(Results(tmp_path, FULL, dict(records))).findings
    assert best == (
        "Of 4 rungs, the held-out images choose 'distilled-longer' (distilled: twice the steps): 13.00 % on them, "
        "13.50 % on the test set, where the paper has 10.03 %: worse by 3.47, of one seed. Averaged over 18 views: "
        "10.50 %, worse by 0.47, of one seed."
    )
    assert untaught.startswith(
        "Of the 2 that learn from labels alone they choose 'muon-longer' (muon: twice the steps): 14.50 % on them, "
    )
    labels_alone = {name: found for name, found in records.items() if "distilled" not in name}
    (only,) = ENTRIES["ladder"].show(Results(tmp_path, FULL, labels_alone)).findings
    assert only.startswith("Of 2 rungs, the held-out images choose 'muon-longer'")


def test_table_5_sets_each_time_beside_the_papers(tmp_path):
    shown = table5.show(Results(tmp_path))
    (table,) = shown.tables
    column = table.columns.index("paper, s")
    assert [row.cells[column].text for row in table.rows[:4]] == ["106.22", "213.60", "319.37", "425.15"]
    assert [row.cells[column].text for row in table.rows[4:8]] == ["19.67", "46.57", "61.63", "91.59"]


def test_an_unknown_entry_is_named():
    with pytest.raises(UnknownNameError, match="unknown entry 'table9': did you mean table"):
        get_entries(["table9"])
    assert [entry.name for entry in get_entries(["table5", "table1"])] == ["table1", "table5"]
