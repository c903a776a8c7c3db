"""What tables 1 and 2 share: the paper's four MNIST networks, each trained by three recipes."""

from __future__ import annotations

from purecaps.experiments.paper.cells import error_text, fit_note, mean_text, plain, verdict_cell
from purecaps.experiments.paper.entry import Results, Row
from purecaps.experiments.paper.figures import Line
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.training import TrainingJob
from purecaps.experiments.paper.verdict import Published, Sample, judge, learned
from purecaps.train.recipes import RECIPES

SEEDS = 10
# The paper does not speak of precision. TF32 is what the H200 multiplies fastest; table 2 has a control in FP32.
CHANGES = {"precision": "tf32", "checkpoint_every": 5000}
RECIPE_TEXT = {"paper": "the paper's", "authors": "its authors' code", "best": "our best"}

# Tables 1 and 2 of the paper, error in percent on MNIST. The tables' numbering; the appendix swaps #0 and #3.
PAPER = {
    "pcapsnet0": Published(0.32, 0.03, "Table 1"),
    "pcapsnet1": Published(1.05, 0.07, "Table 2"),
    "pcapsnet2": Published(0.85, 0.08, "Table 2"),
    "pcapsnet3": Published(0.41, 0.05, "Tables 1 and 2"),
}
PARAMETERS = {"pcapsnet0": 170_784, "pcapsnet1": 2_952, "pcapsnet2": 3_888, "pcapsnet3": 22_176}
# The table whose folder a network's results are in; table 2 shows pcapsnet3 from table 1's.
HOME = {"pcapsnet0": "table1", "pcapsnet1": "table2", "pcapsnet2": "table2", "pcapsnet3": "table1"}

COLUMNS = ("network", "parameters", "trained by", "paper, %", "ours, %", "training error, %", "verdict")
NUMERIC = ("parameters", "paper, %", "ours, %", "training error, %")
NOTE = (
    "Test error on the 10,000 test images, final iterate, mean ± standard deviation over seeds; the test set is read "
    "once and chooses nothing. The training error is the final network's on the images it was trained on, as they are."
)


def name_of(model: str, recipe: str) -> str:
    return f"{HOME[model]}/{model}-{recipe}"


def job_of(model: str, recipe: str, scale: Scale) -> TrainingJob:
    return TrainingJob(
        name=name_of(model, recipe),
        scale=scale.name,
        model=model,
        data="mnist",
        recipe_name=recipe,
        recipe=scale.recipe(RECIPES[recipe].replace(**CHANGES)),
        seeds=scale.most(SEEDS),
        images=scale.images,
    )


def jobs(models: tuple[str, ...], scale: Scale) -> list[TrainingJob]:
    return [job_of(model, recipe, scale) for model in models for recipe in RECIPE_TEXT]


def network_rows(model: str, results: Results) -> list[Row]:
    """A line for each recipe."""
    rows = []
    for recipe, text in RECIPE_TEXT.items():
        job, paper = name_of(model, recipe), PAPER[model]
        errors = results.values(job)
        cells = (
            *plain(
                model,
                f"{PARAMETERS[model]:,}",
                text,
                paper.text(),
                error_text(errors),
                mean_text(results.values(job, "train_error")),
            ),
            verdict_cell(paper, errors, fit_note(results, job, paper)),
        )
        rows.append(Row(cells))
    return rows


def network_lines(model: str, results: Results) -> list[Line]:
    return [
        Line(f"{model}, {text}", results.values(name_of(model, recipe)), PAPER[model], first=recipe == "paper")
        for recipe, text in RECIPE_TEXT.items()
    ]


def findings(models: tuple[str, ...], results: Results) -> tuple[str, ...]:
    """One sentence a network: which recipes reach the paper's figure."""
    sentences = []
    for model in models:
        found = {text: results.values(name_of(model, recipe)) for recipe, text in RECIPE_TEXT.items()}
        run = {text: values for text, values in found.items() if values}
        if not run:
            continue
        reached = [
            text for text, values in run.items() if judge(PAPER[model], learned(values) or values).word != "worse"
        ]
        lowest = min(run, key=lambda text: Sample(run[text]).mean)
        by = f" ({', '.join(reached)})" if reached else ""
        sentences.append(
            f"{model}: the paper's {PAPER[model].text()} % is beaten, or come to within its spread, by {len(reached)} "
            f"of {len(run)} recipes{by}; the lowest mean is {Sample(run[lowest]).text()} % ({lowest})."
        )
    return tuple(sentences)
