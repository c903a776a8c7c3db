"""What is kept of a benchmark: a CSV file that older versions may have begun, and pictures."""

import csv
import dataclasses
import threading
from pathlib import Path

import pytest

from purecaps.errors import ConfigError, DataError
from purecaps.experiments.bench import Row, append_csv, record
from purecaps.experiments.bench.plots import plot
from purecaps.experiments.bench.record import COLUMNS, read_csv

RECORDED = Path(__file__).parents[2] / "benchmarks" / "results.csv"
ROW = Row(
    date="2026-11-16", hardware="a CPU, 2 threads", torch="2.13.0", python="3.11.7", commit="abc", mode="train",
    model="pcapsnet2", batch=128, contender="conv", n=10, min_ms=1.23456789, median_ms=1.5, spread_ms=0.5,
    images_per_s=103680.1, peak_mib=None, times_floor=12.0, precision="fp32", floor_ms=0.1, floor_by="bytes",
    kept_mib=None, note="",
)  # fmt: skip
FAILED = dataclasses.replace(
    ROW, contender="naive", n=0, min_ms=None, median_ms=None, spread_ms=None, images_per_s=None, times_floor=None,
    note="out of memory, sadly",
)  # fmt: skip


def test_rows_are_appended_to_a_csv_file(tmp_path):
    path = tmp_path / "new" / "results.csv"
    append_csv(path, [ROW])
    append_csv(path, [FAILED])
    first, second = read_csv(path)
    assert (first["min_ms"], first["batch"], first["peak_mib"], first["note"]) == ("1.2346", "128", "", "")
    assert (second["min_ms"], second["n"], second["note"]) == ("", "0", "out of memory, sadly")
    assert path.read_text().count("\n") == 3


def test_rows_that_two_append_at_once_are_all_kept(tmp_path, monkeypatch):
    path = tmp_path / "results.csv"
    append_csv(path, [ROW])
    read, has_read = record.read_csv, threading.Event()
    other = threading.Thread(target=append_csv, args=(path, [FAILED]))

    def read_and_dawdle(path):
        found = read(path)
        if not has_read.is_set():
            has_read.set()
            other.start()
            other.join(1)  # time enough to append, for one that does not wait
        return found

    monkeypatch.setattr(record, "read_csv", read_and_dawdle)
    append_csv(path, [ROW])
    other.join()
    assert [row["contender"] for row in read(path)] == ["conv", "conv", "naive"]


def test_rows_of_an_older_version_stay_as_they_were_and_get_blanks(tmp_path):
    old = (
        "date,hardware,torch,python,commit,mode,model,batch,contender,n,min_ms,median_ms,spread_ms,images_per_s,peak_mib,times_floor\n"
        '2026-11-16,"AMD EPYC, 2 threads",2.13.0+cpu,3.11.7,f753c1b2ea19,train,pcapsnet2,128,naive,15,42.718,51.376,14.233,2996.4,0,41.574\n'
    )
    path = tmp_path / "results.csv"
    path.write_text(old)
    append_csv(path, [ROW])
    before, after = read_csv(path)
    assert before["hardware"] == "AMD EPYC, 2 threads"
    assert (before["min_ms"], before["times_floor"]) == ("42.718", "41.574")
    assert [before[name] for name in COLUMNS[16:]] == [""] * 5
    assert after["floor_by"] == "bytes"
    assert path.read_text().splitlines()[1] == old.splitlines()[1] + "," * 5


def test_the_recorded_results_can_be_added_to(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(RECORDED.read_text())
    with open(path, newline="") as file:
        before = list(csv.DictReader(file))
    append_csv(path, [ROW])
    after = read_csv(path)
    assert len(after) == len(before) + 1
    assert all(new[name] == value for old, new in zip(before, after, strict=False) for name, value in old.items())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("date,colour\n", "expected the columns date, hardware, torch, ..., got colour"),
        ("date,hardware\n2026-11-16\n", "expected 2 values in line 2"),
        ("date,hardware\n2026-11-16,CPU,too much\n", "expected 2 values in line 2"),
    ],
)
def test_a_file_of_something_else_is_left_alone(tmp_path, text, message):
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        append_csv(path, [ROW])
    assert path.read_text() == text


def rows_of(batches):
    models = [("pcapsnet0", "train"), ("pcapsnet2", "train"), ("pcapsnet2", "inference")]
    return [
        dataclasses.replace(
            ROW, model=model, mode=mode, batch=batch, contender=name, min_ms=0.1, images_per_s=batch * rate
        )
        for model, mode in models
        for batch in batches
        for name, rate in (("conv", 10.0), ("conv graph", 20.0), ("somebody's", 5.0))
    ]


def test_a_plot_has_a_line_for_each_way_and_the_floor_against_the_batch():
    axes = plot(rows_of([1, 128, 65536])).axes
    assert [axis.get_title(loc="left") for axis in axes] == [
        "pcapsnet0, train", "pcapsnet2, train", "", "pcapsnet2, inference",
    ]  # fmt: skip
    conv, graph, _, floor = axes[0].lines
    assert [line.get_label() for line in axes[0].lines] == ["conv", "conv graph", "somebody's", "floor"]
    assert list(graph.get_ydata()) == [20, 2560, 1310720]
    assert list(floor.get_ydata()) == pytest.approx([1e4, 128e4, 65536e4])
    assert conv.is_dashed()
    assert not graph.is_dashed()
    assert [text.get_text() for text in axes[0].get_xticklabels()] == ["1", "128", "64k"]


def test_one_batch_size_is_drawn_as_dots_with_their_numbers():
    axis = plot(rows_of([128])).axes[0]
    assert axis.get_title(loc="left") == "pcapsnet0, train, batch 128"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["conv", "conv graph", "somebody's"]
    assert [text.get_text() for text in axis.texts] == ["1.28k", "2.56k", "640", "floor 1.28M"]


def test_ways_without_a_time_are_not_drawn():
    figure = plot([ROW, FAILED])
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["conv"]
    with pytest.raises(ConfigError, match="expected at least one measurement to draw"):
        plot([FAILED])
