"""Jobs that attack trained networks, and what their entries make of it."""

import dataclasses
import time

import pytest
from paper_cases import RECIPE, training_job, workplace

from purecaps.evaluate.attacks import by_fgsm, measure
from purecaps.evaluate.classification import wilson_interval
from purecaps.evaluate.trained import TrainedModel
from purecaps.experiments.paper import ENTRIES, table4, whitebox
from purecaps.experiments.paper.attacking import AttackJob, accuracies, attack_text, image_interval
from purecaps.experiments.paper.entry import Results
from purecaps.experiments.paper.job import UnfinishedError, keep, read
from purecaps.experiments.paper.report import write_report
from purecaps.experiments.paper.runner import run_jobs
from purecaps.experiments.paper.scale import FULL

TARGET = training_job("table4/target")
SOURCE = training_job("table4/source", recipe=RECIPE.replace(lr=0.005))
VERSIONS = dict.fromkeys(("purecaps", "commit", "torch", "python", "platform", "hardware"), "x")


def attack_job(method="fgsm", source=SOURCE, **changes):
    usual = {"eps": (0.1, 0.3), "counts": (10, 40), "seeds": 2, "steps": 2}
    return AttackJob("table4/attack", "tiny", target=TARGET, source=source, method=method, **{**usual, **changes})


def run(job, place):
    tally = run_jobs([job], place)
    assert tally.done == [job.name], tally
    return read(place.results, job.name)


def test_a_black_box_attack_is_made_with_the_sources_gradients(digits, tmp_path):
    place, job = workplace(tmp_path, digits), attack_job()
    run_jobs([TARGET], place)
    record = run(job, place)
    for seed, found in enumerate(record["runs"]):
        target, source = (
            TrainedModel.from_file(each.weights(place, seed)).on_unit_pixels() for each in (TARGET, SOURCE)
        )
        expected = measure(target, digits.test.images, digits.test.labels, by_fgsm(source, job.eps))
        assert found["on"][1] == {"asked": 40, **expected.as_dict()}
        assert [point["n"] for point in found["on"][0]["points"]] == [10, 10]
        assert found["target"]["test_error"] == read(place.results, TARGET.name)["runs"][seed]["test_error"]
        assert found["source"]["versions"]["hardware"]
    assert record["parts"][0]["seeds"] == [0, 1]


@pytest.mark.parametrize("method", ["fgsm", "pgd", "uap"])
def test_an_attack_stops_when_its_time_is_over(digits, tmp_path, method):
    place, job = workplace(tmp_path, digits), attack_job(method, source=None)
    run_jobs([TARGET], place)
    place.deadline = time.monotonic()
    with pytest.raises(UnfinishedError, match="stopped in seed 1, which will begin anew"):
        job._attacked(place, 1)


def test_more_seeds_are_attacked_later_without_touching_the_first(digits, tmp_path):
    place = workplace(tmp_path, digits)
    first = run(attack_job(seeds=1), place)
    both = run(attack_job(seeds=2), place)
    assert both["runs"][0] == first["runs"][0]
    assert [each["seed"] for each in both["runs"]] == [0, 1]


def test_training_for_the_weights_leaves_a_record_as_it_is(digits, tmp_path):
    place = workplace(tmp_path, digits)
    before = run(TARGET, place)
    for path in place.work.rglob("model.safetensors"):
        path.unlink()
    run(attack_job(source=None), place)
    assert read(place.results, TARGET.name) == before
    assert TARGET.weights(place, 1) is not None


@pytest.mark.parametrize(
    ("method", "text"),
    [
        ("pgd", "pgd, 2 steps, loss cross_entropy"),
        ("pgd-restarts", "pgd-restarts, 2 steps, restarts 5, loss difference"),
        ("uap", "uap, 2 steps, loss cross_entropy"),
        ("uap-any", "uap-any, 2 steps, aim any, loss cross_entropy"),
        ("noise", "noise"),
    ],
)
def test_white_box_attacks_run_and_say_how(digits, tmp_path, method, text):
    job = attack_job(method, source=None, seeds=1, eps=(0.2,), steps=1 if method == "noise" else 2)
    record = run(job, workplace(tmp_path, digits))
    assert 0 <= accuracies(record, 40, 0.2)[0] <= 100
    assert record["what"]["source"] is None
    assert attack_text(record["what"]) == text


def test_an_attack_that_is_no_stronger_than_random_signs_is_called_out(digits, tmp_path):
    place = workplace(tmp_path, digits)
    for job in whitebox.plan(FULL):
        if isinstance(job, AttackJob) and job.method in ("uap", "noise"):
            fake(job, place, lambda eps, slope=2 - (job.method == "noise"): 0.9 - slope * eps)
    assert (
        "The paper's attack leaves less than random signs at every size."
        in whitebox.show(Results(place.results)).findings
    )
    (failed,) = (job for job in whitebox.plan(FULL) if job.name == "whitebox/uap-cnn-small")
    fake(failed, place, lambda eps: 0.9 if eps > 0.2 else 0.9 - 2 * eps)
    (said,) = (text for text in whitebox.show(Results(place.results)).findings if "random signs" in text)
    assert "or more, to CNN of 3,888 parameters at 0.25, 0.3: there it has found nothing" in said


def test_seeds_can_be_trained_one_by_one(digits, tmp_path):
    place = workplace(tmp_path, digits)
    apart = dataclasses.replace(TARGET, name="table4/apart", together=False)
    record = run(apart, place)
    assert [part["seeds"] for part in record["parts"]] == [[0], [1]]
    together = run(TARGET, place)
    assert [each["seed"] for each in record["runs"]] == [each["seed"] for each in together["runs"]]


def fake(job, place, accuracy):
    points = [
        {"eps": eps, "n": 1000, "correct": round(1000 * accuracy(eps)), "accuracy": 100 * accuracy(eps), "unmoved": 0}
        for eps in (0.0, *job.eps)
    ]
    on = [{"asked": count, "n": 1000, "clean": points[0], "points": points[1:]} for count in job.counts]
    runs = [{"seed": seed, "on": on} for seed in range(job.seeds)]
    part = {"seeds": [0], "command": "x", "finished": "2026-11-16", "versions": VERSIONS}
    return keep(job, place, {"runs": runs, "parts": [part]})


def test_table_4_judges_accuracy_and_says_who_is_the_less_robust(digits, tmp_path):
    place = workplace(tmp_path, digits)
    for job in table4.plan(FULL):
        if isinstance(job, AttackJob):
            slope = 2 if "pcapsnet2" in job.name else 1
            record = fake(job, place, lambda eps, slope=slope: 0.99 - slope * eps)
    assert image_interval(record, 1000, 0.1) == pytest.approx(wilson_interval(890, 1000)), "seeds share the images"
    text = write_report(Results(place.results), [ENTRIES["table4"]])[0].read_text()
    assert (
        "| CNN baseline, 35.4M | 0.3 | 54.51 | 69.00 ± 0.00 (3 seeds) | 69.0 ± 0.0 [66.1, 71.8] | **better by 14.49** |"
        in text
    )
    assert (
        "| pcapsnet2, the paper's recipe | 0.1 | 94.40 | 79.00 ± 0.00 (3 seeds) | 79.0 ± 0.0 [76.4, 81.4] | worse by 15.40 |"
        in text
    )
    assert "pcapsnet2 (the paper's recipe) against the CNN baseline: it is the less accurate at 6 of 6 sizes" in text


def test_the_white_box_entry_looks_for_masked_gradients(digits, tmp_path):
    place = workplace(tmp_path, digits)
    for job in whitebox.plan(FULL):
        if isinstance(job, AttackJob):
            fake(job, place, lambda eps, steep=1 + (job.method == "pgd"): 0.9 - steep * eps)
    shown = whitebox.show(Results(place.results))
    assert any("No sign of masked gradients" in text for text in shown.findings)
    (strange,) = (job for job in whitebox.plan(FULL) if job.name == "whitebox/pgd-baseline")
    fake(strange, place, lambda eps: 0.9)
    shown = whitebox.show(Results(place.results))
    assert any("PGD leaves more than FGSM to CNN baseline, 35.4M" in text for text in shown.findings)
