"""Table 5: seconds for 100 training iterations, on a CPU and on a GPU.

pcapsnet0 at the paper's four batch sizes. An iteration is what `purecaps train` does: sampling, shifting, forward,
backward and Adam, on a GPU as one CUDA graph. FP32 is the paper's arithmetic; TF32 stands beside it.

Command: purecaps reproduce table5
Time: about 3 minutes on one H200
Result: on two CPU cores 2 to 10 s; on one H200 well below 0.1 s, where the paper has 106 to 425 s and 20 to 92 s
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper.cells import NONE, NOT_RUN, plain
from purecaps.experiments.paper.entry import Cell, Entry, Picture, Results, Row, Shown, Table
from purecaps.experiments.paper.figures import against_batch
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.timing import TimingJob
from purecaps.experiments.paper.verdict import Published, Sample, Verdict
from purecaps.train.recipes import RECIPES

# The paper writes "#3", by its appendix's numbering: the network of 170,784 parameters, which the tables call #0.
MODEL = "pcapsnet0"
BATCHES = (50, 100, 150, 200)
SOURCE = "Table 5: one Intel Xeon, one TITAN Xp"
CPU, GPU = "the paper's CPU", "the paper's CUDA kernel"
PAPER = {
    CPU: {50: 106.22, 100: 213.60, 150: 319.37, 200: 425.15},
    GPU: {50: 19.67, 100: 46.57, 150: 61.63, 200: 91.59},
}
RUNS = {  # job: (device, precision, what it stands beside, name in the figure)
    "cpu": ("cpu", "fp32", CPU, "ours, CPU"),
    "cuda-fp32": ("cuda", "fp32", GPU, "ours, GPU"),
    "cuda-tf32": ("cuda", "tf32", GPU, "ours, GPU, TF32"),
}
COLUMNS = ("batch", "on", "paper, s", "ours, s", "times as fast", "hardware")
NUMERIC = ("batch", "paper, s", "ours, s", "times as fast")


def plan(scale: Scale) -> Sequence[Job]:
    full = scale.images is None
    return [
        TimingJob(
            name=f"table5/{name}",
            scale=scale.name,
            model=MODEL,
            data="mnist",
            recipe=RECIPES["paper"].replace(precision=precision),
            device_type=device,
            batches=BATCHES,
            iterations=100 if full else 1,
            windows=(5 if device == "cpu" else 20) if full else 2,
            images=scale.images,
        )
        for name, (device, precision, _, _) in RUNS.items()
    ]


def show(results: Results) -> Shown:
    rows, curves = [], {name: dict(points) for name, points in PAPER.items()}
    for name, (_, precision, beside, label) in RUNS.items():
        record = results.get(f"table5/{name}")
        times = {} if record is None else {run["batch"]: Sample(tuple(run["seconds"])) for run in record["runs"]}
        hardware = NONE if record is None else record["parts"][0]["versions"]["hardware"]
        for batch in BATCHES:
            paper = Published(PAPER[beside][batch], None, SOURCE)
            on = "CPU" if beside == CPU else f"GPU, {precision.upper()}"
            cells = plain(str(batch), on, paper.text())
            if batch not in times:
                rows.append(Row((*cells, *plain(NOT_RUN, NONE, hardware))))
                continue
            ours = times[batch]
            ratio = paper.value / ours.mean
            verdict = Verdict("better" if ratio > 1 else "worse", f"{ratio:,.0f} times as fast")
            text = f"{ours.text(3)} ({len(ours)} times)"
            rows.append(Row((*cells, Cell(text), Cell(f"{ratio:,.0f}", verdict), Cell(hardware))))
        if times:
            curves[label] = {batch: sample.mean for batch, sample in times.items()}
    note = (
        "Seconds for 100 iterations, mean ± standard deviation over repetitions. The machines differ by years: the "
        "ratio says what a user gains, not what the code alone does. [Performance](../docs/performance.md) compares "
        "code on one machine."
    )
    table = Table("Time for 100 iterations of pcapsnet0", COLUMNS, tuple(rows), NUMERIC, note)
    picture = Picture(
        "time",
        against_batch(curves, quoted=tuple(PAPER), ylabel="seconds for 100 iterations"),
        "Seconds for 100 training iterations against the batch size, the paper's and ours, on a logarithmic scale.",
        "Diamonds are the paper's figures.",
    )
    return Shown((table,), (picture,), _findings(results))


def _findings(results: Results) -> tuple[str, ...]:
    found = {name: results.get(f"table5/{name}") for name in ("cpu", "cuda-fp32")}
    if any(record is None for record in found.values()):
        return ()
    means = {
        name: {run["batch"]: Sample(tuple(run["seconds"])).mean for run in record["runs"]}
        for name, record in found.items()
        if record is not None
    }
    ours = [means["cpu"][batch] / means["cuda-fp32"][batch] for batch in BATCHES]
    paper = [PAPER[CPU][batch] / PAPER[GPU][batch] for batch in BATCHES]
    return (
        f"The GPU is {min(paper):.1f} to {max(paper):.1f} times as fast as the CPU in the paper, {min(ours):.0f} to "
        f"{max(ours):.0f} times here.",
    )


ENTRY = Entry("table5", "Time for 100 training iterations", "Table 5 (appendix)", __doc__, plan, show)
