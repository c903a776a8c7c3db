"""The ablations and the figures of kernels: what is compared with what, and what is said of it."""

import math

import pytest
import torch
from paper_cases import SMALLER, workplace

from purecaps.experiments.paper import (
    ablation_coefficients,
    ablation_init,
    ablation_packing,
    ablation_plain,
    ablation_squash,
    comparison,
    correlation,
    filters,
    generalisation,
    inspected,
)
from purecaps.experiments.paper.comparison import difference, size_of
from purecaps.experiments.paper.entry import Results
from purecaps.experiments.paper.job import keep
from purecaps.experiments.paper.runner import run_jobs, select
from purecaps.experiments.paper.scale import FULL
from purecaps.models.store import load_model

ABLATIONS = (ablation_plain, ablation_coefficients, ablation_packing, ablation_init, ablation_squash)
PART = {
    "seeds": [0, 1, 2],
    "command": "purecaps reproduce x",
    "train_seconds": 1.0,
    "finished": "2026-11-16",
    "versions": {"purecaps": "0", "commit": "0", "torch": "0", "python": "0", "platform": "0", "hardware": "0"},
}


def record(job, place, test_errors, val_error=1.0, **more):
    """A record as if the job had been run."""
    runs = [
        {"seed": seed, "test_error": error, "val_error": val_error, "train_error": 0.1, **more}
        for seed, error in enumerate(test_errors)
    ]
    keep(job, place, {"runs": runs, "parts": [PART]})


def cells_of(table, *words):
    (row,) = [row for row in table.rows if all(any(word == cell.text for cell in row.cells) for word in words)]
    return dict(zip(table.columns, (cell.text for cell in row.cells), strict=True))


@pytest.mark.parametrize("entry", ABLATIONS, ids=lambda entry: entry.ENTRY.name)
def test_everything_in_an_ablation_is_trained_alike_on_five_seeds_but_for_what_it_is_about(entry):
    jobs = [job for job in entry.plan(FULL) if job.name != ablation_squash.AUTHORS]
    assert {job.seeds for job in jobs} == {5}
    free = {"init", "init_correlation", "coefficients", "squash_chunk", "squash_gradient", "scale", "lr"}
    fixed = [{name: value for name, value in job.recipe.as_dict().items() if name not in free} for job in jobs]
    assert all(each == fixed[0] for each in fixed)
    assert fixed[0]["val_size"] == 5000
    rest = [job.recipe.as_dict() | {"lr": 0} for job in jobs]
    names = {name for name in free - {"lr"} if len({str(each[name]) for each in rest}) > 1}
    expected = {
        "ablation-plain": {"scale", "init"},
        "ablation-coefficients": {"coefficients"},
        "ablation-packing": set(),
        "ablation-init": {"init", "init_correlation"},
        "ablation-squash": {"squash_chunk", "squash_gradient"},
    }
    assert names == expected[entry.ENTRY.name]


def test_ablations_share_the_papers_networks():
    jobs = {job.name: [] for entry in ABLATIONS for job in entry.plan(FULL)}
    for entry in ABLATIONS:
        for job in entry.plan(FULL):
            jobs[job.name].append(job)
    assert len(jobs["ablation-plain/pcapsnet2-lr0.01"]) == len(ABLATIONS)
    assert all(job == several[0] for several in jobs.values() for job in several)


def test_packings_have_equal_parameters_and_plain_networks_equal_parameters_or_work():
    for variant in ablation_packing.variants(FULL):
        assert size_of(variant.jobs[0])[0] == {"pcapsnet2": 3888, "pcapsnet3": 22_176}[variant.group]
    by_group = {}
    for variant in ablation_plain.variants(FULL):
        by_group.setdefault(variant.group, {})[variant.text] = size_of(variant.jobs[0])
    for sizes in by_group.values():
        capsules, size, work = sizes.values()
        assert size[0] == capsules[0]
        assert work[1] == pytest.approx(capsules[1], rel=5e-4)


def around(mean):
    """Errors of five seeds with a standard deviation of 0.02."""
    return [mean + 0.02 * each for each in (-1.25, -0.5, 0.0, 0.5, 1.25)]


def test_the_learning_rate_is_chosen_by_held_out_images_and_not_by_the_test_set(digits, tmp_path):
    place = workplace(tmp_path, digits)
    capsules, plain, _ = ablation_plain.variants(FULL)[:3]
    for job, val, test in zip(capsules.jobs, (0.9, 0.7, 0.8), (0.5, 0.6, 0.4), strict=True):
        record(job, place, around(test), val)
    record(plain.jobs[0], place, around(0.9), 0.95)
    shown = ablation_plain.show(Results(place.results))
    cells = cells_of(shown.tables[0], "pcapsnet2", "capsule layers")
    assert (cells["learning rate"], cells["test, %"]) == ("0.003", "0.60 ± 0.02 (5 seeds)")
    assert cells_of(shown.tables[0], "pcapsnet2", plain.text)["against the first"] == "+0.30"
    assert cells_of(shown.tables[0], "pcapsnet2", plain.text)["learning rate"] == "0.01*", "two rates are not tried yet"
    assert shown.findings == (
        "pcapsnet2: that capsule layers err less than convolutions of equal parameters is borne out (+0.30 points).",
    )
    assert cells_of(shown.tables[1], "pcapsnet2", "capsule layers")["0.001"] == "0.80 ± 0.00 (5 seeds)"


def test_learning_rates_that_held_out_images_rate_the_same_are_both_told(digits, tmp_path):
    place = workplace(tmp_path, digits)
    capsules, plain, _ = ablation_plain.variants(FULL)[:3]
    for job in capsules.jobs:
        record(job, place, around(0.7), 0.8)
    for job, val, test in zip(plain.jobs, (0.9, 0.9, 0.95), (0.72, 0.82, 0.5), strict=True):
        record(job, place, around(test), val)
    shown = ablation_plain.show(Results(place.results))
    assert cells_of(shown.tables[0], "pcapsnet2", plain.text)["learning rate"] == "0.01 (0.003)"
    assert shown.findings == (
        "pcapsnet2: that capsule layers err less than convolutions of equal parameters is not decided by these seeds "
        "(+0.02 points, not told apart; at 0.003, which the held-out images rate the same, +0.12 points).",
    )


def test_a_training_whose_seeds_are_not_all_there_is_not_chosen_while_another_is_whole(digits, tmp_path):
    place = workplace(tmp_path, digits)
    capsules = ablation_plain.variants(FULL)[0]
    record(capsules.jobs[0], place, around(0.7), 0.8)
    record(capsules.jobs[1], place, [0.5], 0.6)
    assert capsules.chosen(Results(place.results)) is capsules.jobs[0]


def test_means_are_told_apart_by_their_intervals():
    # For three seeds half an interval is 4.303 standard deviations over sqrt(3).
    base = (1.0, 1.1, 0.9)
    half = 4.303 * 0.1 / math.sqrt(3) * math.sqrt(2)
    assert difference([value + half + 0.01 for value in base], base).told_apart
    near = difference([value + half - 0.01 for value in base], base)
    assert not near.told_apart
    assert near.text == f"{half - 0.01:+.2f}, not told apart"
    assert not difference([5.0], base).told_apart, "one seed tells nothing apart"
    assert difference([], base) is None


@pytest.mark.parametrize(
    ("value", "told_apart", "says"),
    [(0.2, True, "is borne out"), (-0.2, True, "is contradicted"), (0.2, False, "is not decided by these seeds")],
)
def test_a_claim_is_borne_out_only_by_what_is_told_apart(value, told_apart, says):
    apart = comparison.Difference(value, told_apart)
    assert apart.bears_out(higher=True) == says
    assert comparison.Difference(-value, told_apart).bears_out(higher=False) == says


def test_coefficients_that_help_contradict_the_paper(digits, tmp_path):
    place = workplace(tmp_path, digits)
    none, free, softmax = ablation_coefficients.variants(FULL)[:3]
    record(none.jobs[0], place, [0.8, 0.81, 0.79])
    record(free.jobs[0], place, [0.6, 0.61, 0.59])
    (finding,) = ablation_coefficients.show(Results(place.results)).findings
    assert "is contradicted: learned, free err less (learned, free: -0.20 points)" in finding
    record(free.jobs[0], place, [0.9, 0.91, 0.89])
    record(softmax.jobs[0], place, [0.8, 0.9, 0.7])
    shown = ablation_coefficients.show(Results(place.results))
    assert "that coefficients are not needed is not contradicted by these seeds" in shown.findings[0]
    assert cells_of(shown.tables[0], "pcapsnet2", softmax.text)["parameters"] == f"{3888 + 9 * 14:,}"


def test_early_errors_are_those_after_a_tenth_of_the_run(digits, tmp_path):
    place = workplace(tmp_path, digits)
    job = ablation_init.variants(FULL)[0].jobs[0]
    curves = {"step": [1000, 2000, 3000], "val_error": [5.0, 3.25, 2.0]}
    record(job, place, [0.8, 0.9], curves=curves)
    assert job.recipe.eval_every == 1000
    shown = ablation_init.show(Results(place.results))
    assert cells_of(shown.tables[1], "pcapsnet2", "Caffe's count, correlation 0")["held out after 2,000 steps, %"] == (
        "3.25 ± 0.00 (2 seeds)"
    )


def test_figures_share_what_they_train():
    names = {job.name for entry in (filters, correlation, generalisation) for job in entry.plan(FULL)}
    assert names == {inspected.name_of(run) for run in inspected.RUNS}
    for job in generalisation.plan(FULL):
        assert (job.recipe.val_size, job.recipe.probe_size) == (5000, 5000)
        assert job.seeds == (3 if job.model == "cnn_baseline" else 5)


def test_what_is_kept_of_a_network_is_its_own(digits, tmp_path):
    place = workplace(tmp_path, digits)
    (job,) = select([filters.ENTRY], SMALLER, only="pcapsnet2-best")
    assert run_jobs([job], place).done == [job.name]
    results = Results(place.results, SMALLER)
    model, _ = load_model(job.weights(place, 0))
    stored = inspected.stored_kernels(results, inspected.BEST)
    for block, kernel in zip(model.blocks, stored, strict=True):
        torch.testing.assert_close(kernel, block.conv.weight.detach(), rtol=1e-3, atol=1e-6)
    matrix = torch.tensor(inspected.of_seeds(results, inspected.BEST, "matrices")[0][1])
    expected = torch.corrcoef(model.blocks[1].conv.weight.detach().reshape(9, 32))
    torch.testing.assert_close(matrix, expected, rtol=0, atol=2e-3)
    found = inspected.layer_values(results, inspected.BEST, 1, "mean_abs")
    assert found == (pytest.approx(expected[~torch.eye(9, dtype=torch.bool)].abs().mean().item(), rel=1e-3),)


def test_more_correlation_that_is_due_to_fewer_numbers_is_said_to_be_so(digits, tmp_path):
    place = workplace(tmp_path, digits)
    capsules, cnn = (inspected.job_of(run, FULL) for run in (inspected.PAPER, inspected.BASELINE))
    about = {"shape": [], "mean": 0.0, "squared_beyond_chance": 0.0}
    ours = {**about, "positions": 9, "filters": 16, "mean_abs": 0.21, "by_chance": 0.209, "mean_abs_of_few": 0.21}
    theirs = {**about, "positions": 25, "filters": 256, "mean_abs": 0.1, "by_chance": 0.05, "mean_abs_of_few": 0.25}
    record(capsules, place, [0.9, 0.8, 0.7], layers=[ours])
    record(cnn, place, [0.4, 0.4, 0.5], layers=[theirs])
    (finding,) = correlation.show(Results(place.results)).findings
    assert "0.210 against the CNN's 0.100, where chance alone gives 0.209 and 0.050" in finding
    assert "With 16 filters at a time capsules are the lower ones: 0.210 against 0.250." in finding


def test_losses_of_different_kinds_are_not_compared(digits, tmp_path):
    place = workplace(tmp_path, digits)
    curves = {"step": [5], "train_loss": [0.1], "val_loss": [0.2], "train_error": [1.0], "val_error": [3.0]}
    for run in inspected.RUNS:
        record(inspected.job_of(run, FULL), place, [0.8, 0.9], curves=curves)
    findings = generalisation.show(Results(place.results)).findings
    assert not any("paper's recipe" in finding and "gap in loss" in finding for finding in findings)
    assert sum("gap in loss" in finding for finding in findings) == 2
    assert sum("gap in error" in finding for finding in findings) == 4
