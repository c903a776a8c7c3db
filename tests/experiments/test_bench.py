"""Benchmarks: ways to run a network side by side, and what becomes of those that cannot."""

import json
import re
import sys
from dataclasses import replace

import pytest
import torch
from bench_cases import CPU, QUICK, SMALL, hurry, odd_one

from purecaps import cli
from purecaps.errors import ConfigError, UnknownNameError
from purecaps.experiments.bench import Contender, Settings, Way, bench, offered
from purecaps.experiments.bench.contenders import CONTENDERS, Entrant, parse, timed, usual
from purecaps.experiments.bench.memory import out_of_memory, within_memory
from purecaps.experiments.bench.plain_cnn import PlainCNN
from purecaps.experiments.bench.subjects import layers_of, registered
from purecaps.experiments.bench.tables import HEADINGS, footer, lines, notes


def ways(*names):
    return parse(names, "cpu")


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch):
    hurry(monkeypatch)


def refuse_batch(monkeypatch, size):
    """Has the contender "cpu" refuse one batch size, as an implementation may refuse a problem."""
    contender = CONTENDERS["cpu"]

    def make(case):
        if case.batch == size:
            raise ConfigError(f"impl: 'cpu' does not cover this problem (B = {size}, which it does not like)")
        return contender.make(case)

    monkeypatch.setitem(CONTENDERS, "cpu", replace(contender, make=make))


@pytest.fixture(scope="module")
def report():
    names = ("naive", "conv", "cpu", "compile_inference", "cnn")
    with pytest.MonkeyPatch.context() as monkeypatch:
        hurry(monkeypatch)
        refuse_batch(monkeypatch, 5)
        return bench([SMALL], {"forward": [33], "train": [33], "inference": [5, 33]}, ways(*names), QUICK)


def test_every_way_is_timed_in_every_mode_it_has(report):
    found = {}
    for row in report.rows:
        found.setdefault((row.mode, row.batch), []).append(row.contender)
    usual = ["naive", "conv", "cpu", "cnn"]
    with_ours = ["naive", "conv", "cpu", "compile_inference", "cnn"]
    assert found == {
        ("forward", 33): usual,
        ("train", 33): usual,
        ("inference", 5): with_ours,
        ("inference", 33): with_ours,
    }
    assert report.failures == []


def test_a_measured_row_has_times_of_every_round_and_a_refused_one_its_reason(report):
    for row in report.rows:
        if row.contender == "cpu" and row.batch == 5:
            assert (row.n, row.min_ms, row.images_per_s, row.times_floor) == (0, None, None, None)
            assert "B = 5, which it does not like" in row.note
            continue
        assert row.n == 2
        assert 0 < row.min_ms <= row.median_ms <= row.min_ms + row.spread_ms
        assert row.images_per_s == pytest.approx(row.batch / row.min_ms * 1e3)
        if row.contender == "cnn":  # another network, with another floor
            assert row.times_floor is None
        else:
            assert row.times_floor == pytest.approx(row.min_ms / row.floor_ms)


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("wrong forward", "forward", r"expected the specification's scores to 0\.0001, got 0\.00\d+ off"),
        ("wrong forward", "train", r"expected the specification's loss to 0\.0001, got 0\.00\d+ off"),
        ("wrong backward", "train", r"expected the specification's gradient of blocks\.0\.conv\.weight to 0\.05, got 0\.28 off"),
        ("slightly wrong backward", "train", r"expected the specification's gradient of blocks\.0\.conv\.weight at a slope of 1 to 0\.0001, got 0\.005 off"),
        ("another slope", "inference", r"expected a class whose capsule is within 1e-05 of the longest, got one 0\.\d+ shorter"),
    ],
)  # fmt: skip
def test_what_computes_something_else_is_not_timed_and_is_a_failure(name, mode, expected):
    network = registered("pcapsnet1")  # trained, so that its classes are not a matter of chance
    found = bench([network], {mode: [7]}, [*ways("conv"), odd_one(name)], QUICK)
    good, bad = found.rows
    assert good.min_ms is not None
    assert bad.min_ms is None
    assert re.fullmatch(expected, bad.note)
    assert found.failures == [f"pcapsnet1, {mode}, batch 7, {name}: {bad.note}"]


def test_what_is_compiled_is_spared_the_check_at_another_slope():
    found = bench([SMALL], {"train": [7]}, [odd_one("slightly wrong backward", compiled=True)], QUICK)
    assert found.failures == []


def test_running_out_of_memory_is_a_row_and_not_a_failure():
    found = bench([SMALL], {"forward": [3]}, [odd_one("too large"), *ways("conv")], QUICK)
    assert [(row.contender, row.note, row.min_ms is None) for row in found.rows] == [
        ("too large", "out of memory", True),
        ("conv", "", False),
    ]
    assert found.failures == []


def test_what_breaks_is_named_and_costs_the_others_nothing():
    found = bench([SMALL], {"train": [3]}, [odd_one("broken"), *ways("conv")], QUICK)
    assert [row.note for row in found.rows] == ["RuntimeError: the kernel is on fire", ""]
    assert found.failures == ["small, train, batch 3, broken: RuntimeError: the kernel is on fire"]


def test_past_the_budget_nothing_is_compiled_and_the_rest_goes_on():
    def never(case):
        raise AssertionError("compiled all the same")

    compiled = Way(Contender("slow", never, compiled=True))
    found = bench([SMALL], {"forward": [3]}, [compiled, *ways("conv")], Settings(CPU, rounds=1, budget=0))
    assert [row.note for row in found.rows] == ["left out, the budget of 0 s is spent", ""]


def test_a_graph_is_held_against_the_specification_too(monkeypatch):
    """What a replay leaves in memory is checked, not only what was computed on the way there."""
    from purecaps.experiments.bench import timing

    def stale(step, device, *, graph):
        prepared = real(step, device, graph=False)
        return timing.Prepared(prepared.call, torch.zeros_like(prepared.output), None) if graph else prepared

    real = timing.prepare
    monkeypatch.setattr(timing, "prepare", stale)
    conv = ways("conv")[0]
    found = bench([SMALL], {"forward": [3]}, [conv, Way(conv.contender, graph=True)], Settings(CPU, rounds=1))
    assert [row.note for row in found.rows] == ["", "expected the specification's scores to 0.0001, got 1 off"]


def test_memory_that_ran_out_is_recognised_inside_of_other_errors():
    assert out_of_memory(RuntimeError("backend failed:\nCUDA out of memory. Tried to allocate"))
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("illegal memory access"))


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_more_memory_than_there_is_cannot_be_taken_and_the_limit_is_put_back():
    import resource

    before = resource.getrlimit(resource.RLIMIT_DATA)
    with within_memory(CPU):
        assert resource.getrlimit(resource.RLIMIT_DATA)[0] != before[0]
        with pytest.raises(RuntimeError, match="can't allocate memory") as error:
            torch.empty(2**43, dtype=torch.uint8)
    assert out_of_memory(error.value)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_the_table_has_ratios_to_conv_and_the_floor_below(report):
    table = lines(report.rows)
    assert all(len(line) == len(HEADINGS) for line in table)
    at = HEADINGS.index
    conv = next(line for line in table if line[at("contender")] == "conv")
    last = next(line for line in table if line[at("contender")].startswith("floor: "))
    assert conv[at("x conv")] == last[at("x floor")][:1] + ".00"
    assert float(last[at("x conv")]) == pytest.approx(float(conv[at("x floor")]), rel=0.2)
    missing = next(line for line in table if line[at("contender")] == "cpu" and line[at("batch")] == "5")
    assert missing[4:] == ["-"] * 8


def test_below_the_table_stand_reasons_and_the_arithmetic(report):
    assert "compile_inference: took cpu (small inference 5, small inference 33)" in notes(report.rows)
    assert any(
        "arithmetic, of all contenders alike: forward in float32 without TF32" in line
        for line in footer(report.rows, report.rates)
    )


def test_on_cuda_every_contender_is_offered_as_a_graph_too():
    names = [way.name for way in offered("cuda")]
    assert {
        "conv",
        "conv graph",
        "compile graph",
        "max-autotune graph",
        "triton graph",
        "compile_inference graph",
        "one kernel graph",
    } <= set(names)
    assert "cpu" not in names
    assert [way.name for way in usual("cpu")] == ["naive", "conv", "compile", "cpu", "compile_inference", "cnn"]


def test_batches_repeat_images_and_every_image_is_checked():
    """A contender that is right for the first images and wrong for the last one is found out."""

    def make(case):
        network = case.build("conv")

        def scores(images):
            found = timed(network, case)(images)
            found[-1] += 0.1
            return found

        return Entrant(scores, network)

    found = bench([SMALL], {"forward": [37]}, [Way(Contender("last", make))], QUICK)
    assert "expected the specification's scores" in found.failures[0]


@pytest.mark.parametrize("parameters", [2952, 170_784])
def test_the_plain_cnn_has_about_as_many_parameters(parameters):
    model = PlainCNN(parameters, 1, [(2, 0), (1, 0), (2, 0), (1, 1), (1, 0)], 10)
    assert 0.8 * parameters < sum(p.numel() for p in model.parameters()) <= parameters
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("name", ["pcapsnet0", "pcapsnet4"])
def test_layers_read_from_a_network_build_it_again(name):
    network = registered(name).build("reference", False)
    from purecaps import PCapsNet

    again = PCapsNet(layers_of(network), in_shape=network.in_shape)
    assert {k: v.shape for k, v in again.state_dict().items()} == {k: v.shape for k, v in network.state_dict().items()}
    assert again.multiply_adds() == network.multiply_adds()


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda: parse(["con"], "cpu"), UnknownNameError, "unknown contender on cpu 'con': did you mean conv"),
        (lambda: parse(["triton graph"], "cpu"), UnknownNameError, "unknown contender on cpu 'triton graph'"),
        (lambda: registered("pcapsnet8"), UnknownNameError, "unknown model 'pcapsnet8'"),
        (lambda: registered("lenet"), ConfigError, "models: expected P-CapsNets, got 'lenet'"),
        (
            lambda: bench([SMALL], {"training": [3]}, [], QUICK),
            UnknownNameError,
            "unknown mode 'training': did you mean train",
        ),
        (
            lambda: bench([SMALL], {"train": [3, 0]}, [], QUICK),
            ConfigError,
            r"batches: expected numbers >= 1, got \[3, 0\]",
        ),
        (
            lambda: bench([SMALL], {"train": [3]}, ways("compile_inference"), QUICK),
            ConfigError,
            "contenders: expected at least one for train, got compile_inference",
        ),
        (lambda: Settings(CPU, "tf32"), ConfigError, "precision: expected fp32 or bf16 on cpu, got tf32"),
        (lambda: Settings(CPU, "fp8"), UnknownNameError, "unknown precision 'fp8'"),
        (lambda: Settings(CPU, rounds=0), ConfigError, "rounds: expected an int >= 1, got 0"),
        (lambda: Settings(CPU, budget=-1), ConfigError, "budget: expected seconds >= 0, got -1"),
        (lambda: Settings(torch.device("meta")), ConfigError, "device: expected cpu or cuda, got meta"),
    ],
)
def test_senseless_requests_are_refused(function, error, message):
    with pytest.raises(error, match=message):
        function()


def run_verb(*words):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", "--rounds", "1", "--device", "cpu", *words])
    return stop.value.code


def test_the_verb_prints_a_table_and_writes_what_it_is_told(tmp_path, capsys, monkeypatch):
    refuse_batch(monkeypatch, 1)
    what = ["--models", "pcapsnet1", "--batches", "1,32", "--modes", "inference", "--contenders", "conv,cpu"]
    files = {"--csv": tmp_path / "r.csv", "--plot": tmp_path / "p.png", "--json": tmp_path / "r.json"}
    assert run_verb(*what, *(str(word) for pair in files.items() for word in pair)) == 0
    printed = capsys.readouterr().out
    assert re.search(r"pcapsnet1 +inference +32 +cpu +\d", printed)
    assert re.search(r"pcapsnet1 +inference +1 +cpu +- ", printed)
    assert "cpu: impl: 'cpu' does not cover this problem (B = 1" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"r.csv", ".r.csv.lock", "p.png", "r.json"}
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 5
    found = json.loads((tmp_path / "r.json").read_text())
    assert [row["contender"] for row in found["rows"]] == ["conv", "cpu", "conv", "cpu"]
    assert found["rates"]["fp32"]["flop"] > 0
    assert found["versions"]["torch"] == torch.__version__


def test_the_verb_shows_growth(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("purecaps.experiments.bench.timing.milliseconds", lambda call, device, calls: (2.0, calls))
    what = ["--grow", "capsules", "--models", "pcapsnet1", "--batches", "3", "--contenders", "conv"]
    assert run_verb(*what, "--json", str(tmp_path / "g.json"), "--plot", str(tmp_path / "g.png")) == 0
    assert re.search(r"pcapsnet1 +conv +2\.00 +2\.00 +2\.00 +0\.00 +0\.00 +1\.\d\d", capsys.readouterr().out)
    assert json.loads((tmp_path / "g.json").read_text())["growth"][0]["exponent"] == pytest.approx(0)


def test_the_verb_fails_after_everything_else_where_parity_does(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "purecaps.experiments.bench.contenders.usual", lambda kind: [*ways("conv"), odd_one("wrong forward")]
    )
    assert (
        run_verb("--models", "pcapsnet1", "--batches", "3", "--modes", "forward", "--csv", str(tmp_path / "r.csv")) == 1
    )
    printed = capsys.readouterr()
    assert re.search(r"forward +3 +conv +\d", printed.out)
    assert "error: 1 not measured: pcapsnet1, forward, batch 3, wrong forward: " in printed.err
    assert len((tmp_path / "r.csv").read_text().splitlines()) == 3


@pytest.mark.slow
def test_torch_compile_passes_the_parity_check_and_is_timed():
    found = bench([SMALL], {"train": [3]}, ways("compile"), QUICK)
    assert found.failures == []
    assert found.rows[0].min_ms is not None


@pytest.mark.gpu
def test_on_a_gpu_graphs_agree_with_the_specification_and_ours_keeps_outputs_alone():
    names = ["conv", "conv graph", "triton graph", "compile_inference graph", "one kernel graph", "cnn graph"]
    found = bench(
        [registered("pcapsnet2")], {"forward": [65], "train": [65], "inference": [65]}, parse(names, "cuda"),
        Settings(torch.device("cuda"), "tf32", rounds=2),
    )  # fmt: skip
    assert found.failures == []
    assert all(row.peak_mib > 0 and row.min_ms > 0 for row in found.rows)
    kept = {row.contender: row.kept_mib for row in found.rows if row.mode == "train"}
    # Each layer's output, and a length for each of its capsules.
    numbers, capsules = 13 * 13 * 16 + 11 * 11 * 32 + 5 * 5 * 16 + 3 * 3 * 32 + 160, 13 * 13 + 11 * 11 + 5 * 5 + 9 + 10
    assert 0 < kept["triton graph"] < 1.02 * 65 * 4 * (numbers + capsules) / 2**20
