"""Benchmarks: nothing is timed that does not compute the right thing."""

import csv
import dataclasses
import re

import pytest
import torch

from purecaps import cli, create_model
from purecaps.errors import ConfigError, PurecapsError, UnknownNameError
from purecaps.experiments.bench import HEADINGS, append_csv, bench, floor_ms, plot, table
from purecaps.experiments.contenders import CONTENDERS, Contender, PlainCNN

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def rows():
    return bench(
        ["pcapsnet1"], [32], ["train", "inference"], ["naive", "conv", "gemm", "triton", "cnn"], device=CPU, rounds=2
    )


def test_every_contender_of_the_device_is_timed(rows):
    assert [(row.mode, row.contender) for row in rows] == [
        (mode, name) for mode in ("train", "inference") for name in ("naive", "conv", "gemm", "cnn")
    ]
    assert all(0 < row.min_ms <= row.median_ms and row.images_per_s > 0 and row.times_floor > 0 for row in rows)


def test_a_contender_that_computes_something_else_is_refused(monkeypatch):
    class Wrong(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = create_model("pcapsnet1")

        def state_dict(self):
            return self.inner.state_dict()

        def forward(self, images):
            return 1.1 * self.inner(images)

    monkeypatch.setitem(CONTENDERS, "wrong", Contender("wrong", lambda name, device: Wrong()))
    with pytest.raises(PurecapsError, match=r"wrong: expected the scores of the specification to 0\.001, got 0\.1 off"):
        bench(["pcapsnet1"], [3], ["inference"], ["wrong"], device=CPU, rounds=1)


def test_the_table_has_ratios_to_conv2d_of_the_same_run(rows):
    lines = {(line[1], line[3]): line for line in table(rows)}
    assert all(len(line) == len(HEADINGS) for line in lines.values())
    assert lines["train", "conv"][HEADINGS.index("x conv")] == "1.00"


def test_the_floor_is_the_arithmetic_of_the_convolutions():
    assert floor_ms("pcapsnet2", "train", 10, peak=1e9) == pytest.approx(2 * 214_416 * 10 * 3 / 1e9 * 1e3)


def test_rows_are_appended_to_a_csv_file(rows, tmp_path):
    for _ in range(2):
        append_csv(tmp_path / "new" / "results.csv", rows)
    with open(tmp_path / "new" / "results.csv", newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == 2 * len(rows)
    assert read[0]["contender"] == "naive"


def test_a_plot_has_a_panel_for_each_model_and_mode(rows):
    more = [dataclasses.replace(row, batch=64) for row in rows]
    titles = [axis.get_title(loc="left") for axis in plot(rows).axes]
    assert titles == ["pcapsnet1, inference, batch 32", "pcapsnet1, train, batch 32"]
    assert [len(axis.lines) for axis in plot([*rows, *more]).axes] == [4, 4]


@pytest.mark.parametrize("parameters", [2952, 170_784])
def test_the_plain_cnn_has_about_as_many_parameters(parameters):
    model = PlainCNN(parameters, 1, (2, 1, 2, 1, 1), 10)
    assert 0.8 * parameters < sum(p.numel() for p in model.parameters()) <= parameters
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"contenders": ["con"]}, UnknownNameError, "unknown contender 'con': did you mean conv"),
        ({"modes": ["training"]}, UnknownNameError, "unknown mode 'training': did you mean train"),
        ({"models": ["pcapsnet8"]}, UnknownNameError, "unknown model 'pcapsnet8'"),
        ({"batches": [0]}, ConfigError, r"expected numbers >= 1, got 10 and \[0\]"),
    ],
)
def test_senseless_requests_are_refused(change, error, message):
    usual = {"models": ["pcapsnet1"], "batches": [32], "modes": ["train"], "contenders": ["conv"]}
    with pytest.raises(error, match=message):
        bench(**{**usual, **change}, device=CPU)


def test_the_verb_prints_a_table_and_writes_what_it_is_told(tmp_path, capsys):
    words = ["bench", "--models", "pcapsnet1", "--batches", "32", "--modes", "inference", "--contenders", "conv,gemm"]
    files = ["--csv", str(tmp_path / "r.csv"), "--plot", str(tmp_path / "p.png"), "--rounds", "1", "--device", "cpu"]
    with pytest.raises(SystemExit) as stop:
        cli.main([*words, *files])
    assert stop.value.code == 0
    assert re.search(r"pcapsnet1 +inference +32 +gemm", capsys.readouterr().out)
    assert {path.name for path in tmp_path.iterdir()} == {"r.csv", "p.png"}
