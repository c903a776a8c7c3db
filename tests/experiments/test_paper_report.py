"""The report is made from the JSON files alone, and every number on it can be traced."""

import dataclasses
import re

import pytest
from paper_cases import workplace

from purecaps.errors import ConfigError
from purecaps.experiments.paper import ENTRIES, table1, table5
from purecaps.experiments.paper.entry import Cell, Results, Row, Table
from purecaps.experiments.paper.job import keep
from purecaps.experiments.paper.markup import html_table, markdown_table
from purecaps.experiments.paper.report import write_report
from purecaps.experiments.paper.scale import FULL, TINY

VERSIONS = {
    "purecaps": "0.1",
    "commit": "0123456789ab",
    "torch": "2.11.0",
    "python": "3.12.3",
    "platform": "Linux",
    "hardware": "NVIDIA <H200>",
}


def record(job, place, errors, train_error=0.05, **part):
    runs = [{"seed": seed, "test_error": error, "train_error": train_error} for seed, error in enumerate(errors)]
    about = {"seeds": list(range(len(errors))), "command": job.command, "train_seconds": 81.2, "finished": "2026-11-16"}
    keep(job, place, {"runs": runs, "parts": [{**about, "versions": VERSIONS, **part}]})


@pytest.fixture
def place(digits, tmp_path):
    place = workplace(tmp_path, digits)
    paper, authors, best, *_ = table1.plan(FULL)
    record(paper, place, [0.33, 0.34, 0.35])
    record(authors, place, [0.5, 0.6, 0.7], train_error=0.55)
    record(best, place, [0.22, 0.22])
    return place


def line_of(text, *words):
    (line,) = [line for line in text.splitlines() if line.startswith("|") and all(word in line for word in words)]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_a_line_reads_paper_ours_and_verdict(place):
    text = write_report(Results(place.results), [ENTRIES["table1"]])[0].read_text()
    assert line_of(text, "pcapsnet0", "| the paper's |") == [
        "pcapsnet0", "170,784", "the paper's", "0.32 ± 0.03", "0.34 ± 0.01 (3 seeds)", "0.05", "**inside**",
    ]  # fmt: skip
    assert line_of(text, "pcapsnet0", "authors' code")[-1] == "worse by 0.28; underfits: training error 0.55 %"
    assert line_of(text, "pcapsnet0", "| our best |")[-1] == "**better by 0.10**"
    assert line_of(text, "pcapsnet3", "| our best |")[4:] == ["not run yet", "–", "–"]
    assert line_of(text, "DCNet++")[-1] == "*quoted*"
    assert line_of(text, "| table1 |")[1:3] == ["1 inside, 1 better, 1 worse", "0 of 12, 3 in part"]
    assert "is beaten, or come to within its spread, by 2 of 3 recipes (the paper's, our best)" in text


def test_a_job_counts_as_done_with_all_of_its_seeds(place):
    paper, *_ = table1.plan(FULL)
    record(paper, place, [0.33] * paper.seeds)
    text = write_report(Results(place.results), [ENTRIES["table1"]])[0].read_text()
    assert line_of(text, "| table1 |")[2] == "1 of 12, 2 in part"


def test_a_picture_shows_what_learned_and_counts_what_did_not(place):
    paper, *_ = table1.plan(FULL)
    record(paper, place, [0.33, 0.35, 90.0], train_error=30.0)
    results = Results(place.results)
    (axes,) = table1.show(results).pictures[0].figure.axes
    assert axes.get_xlim()[1] < 2
    assert [text.get_text() for text in axes.texts] == ["1 did not learn \N{RIGHTWARDS ARROW}", *3 * ["not run yet"]]
    text = write_report(results, [ENTRIES["table1"]])[0].read_text()
    assert line_of(text, "pcapsnet0", "| the paper's |")[-1] == "**inside; 1 of 3 seeds did not learn**"


def test_what_has_not_run_has_no_picture(place):
    text = write_report(Results(place.results), [ENTRIES["table1"], ENTRIES["ladder"]])[0].read_text()
    assert "table1/errors.png" in text
    assert (place.results / "table1/errors.png").is_file()
    assert "ladder.png" not in text
    assert not (place.results / "ladder").exists()


def test_every_number_is_traced_to_a_file_and_a_command(place):
    text = write_report(Results(place.results), [ENTRIES["table1"]])[0].read_text()
    cells = line_of(text, "table1/pcapsnet0-authors")
    assert cells[1] == "0 to 2"
    assert "lr 0.01" in cells[2]
    assert cells[3:] == [
        "81 s", "NVIDIA <H200>", "purecaps 0.1, torch 2.11.0, Python 3.12.3", "0123456789ab", "2026-11-16",
        "purecaps reproduce table1 --only pcapsnet0-authors",
    ]  # fmt: skip


def test_the_page_needs_nothing_but_itself(place):
    page = write_report(Results(place.results), ENTRIES.values())[1].read_text()
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "<script" not in page
    assert "NVIDIA &lt;H200&gt;" in page
    assert '<span class="verdict worse">worse by 0.28' in page
    for name in ENTRIES:
        assert f'<a href="#{name}">' in page
        assert f'<section id="{name}">' in page


def test_the_same_records_make_the_same_files(place):
    shown = [ENTRIES["table1"]]
    first = [path.read_bytes() for path in write_report(Results(place.results), shown)]
    assert first == [path.read_bytes() for path in write_report(Results(place.results), shown)]


def test_a_recipe_that_has_changed_since_is_told(place, monkeypatch):
    entry = ENTRIES["table1"]
    changed = [dataclasses.replace(job, recipe=job.recipe.replace(lr=0.5)) for job in entry.plan(FULL)]
    text = write_report(Results(place.results), [dataclasses.replace(entry, plan=lambda scale: changed)])[0].read_text()
    assert "table1/pcapsnet0-paper (recipe has changed since: recipe.lr was 0.002, is 0.5)" in text
    assert line_of(text, "| table1 |")[2] == "0 of 12, 3 by another recipe"


def test_a_report_takes_no_records_of_another_scale(place):
    with pytest.raises(ConfigError, match=r"--out: expected a folder for results of scale tiny, got .* of scale full"):
        write_report(Results(place.results, TINY), [ENTRIES["table1"]])


def test_tf32_is_told_as_what_a_cpu_makes_of_it(place):
    _, authors, *_ = table1.plan(FULL)
    record(authors, place, [0.5, 0.6], versions=VERSIONS | {"hardware": "a CPU, 1 thread"})
    text = write_report(Results(place.results), [ENTRIES["table1"]])[0].read_text()
    assert line_of(text, "| table1/pcapsnet0-authors |")[2].endswith("precision fp32, of a CPU")
    assert line_of(text, "| table1/pcapsnet0-paper |")[2].endswith("precision tf32")


def test_a_tiny_report_says_that_it_means_nothing(tmp_path):
    for path in write_report(Results(tmp_path, TINY), [ENTRIES["table1"]]):
        assert "runs of scale tiny, to see that everything works: the numbers mean nothing" in path.read_text()


def test_table_5_gives_ratios_to_the_papers_times(place):
    cpu, gpu, _ = table5.plan(FULL)
    for job, seconds in ((cpu, 4.0), (gpu, 0.05)):
        runs = [{"batch": batch, "seconds": [seconds, seconds]} for batch in table5.BATCHES]
        keep(job, place, {"runs": runs, "parts": [{"command": "x", "finished": "2026-11-16", "versions": VERSIONS}]})
    text = write_report(Results(place.results), [ENTRIES["table5"]])[0].read_text()
    assert line_of(text, "| 100 | CPU |")[2:5] == ["213.60", "4.000 ± 0.000 (2 times)", "**53**"]
    assert line_of(text, "| 200 | GPU, FP32 |")[4] == "**1,832**"
    assert line_of(text, "| 200 | GPU, TF32 |")[3] == "not run yet"
    assert "4.6 to 5.4 times as fast as the CPU in the paper, 80 to 80 times here" in text


def test_marks_of_markdown_and_html_are_kept_out_of_cells():
    table = Table(
        "t",
        ("a", "b"),
        (
            Row(
                (Cell("x|y*z"), Cell("<b>")),
            ),
        ),
        ("b",),
    )
    assert "x\\|y\\*z" in markdown_table(table)
    assert '<td class="n">&lt;b&gt;</td>' in html_table(table)


def test_only_what_is_said_beside_a_number_is_broken_into_lines():
    cells = tuple(map(Cell, ("a, b; c", "27.37 ± 1.00 (10 seeds); 3 did not learn, the others 1,234.5")))
    page = html_table(Table("t", ("name", "error"), (Row(cells),), ("error",)))
    assert "27.37 ± 1.00 (10 seeds);<br>3 did not learn,<br>the others 1,234.5</td>" in page
    assert ">a, b; c</th>" in page
