"""Ablation: squash over whole capsules or chunks of 8, with the exact gradient or the diagonal of its Jacobian.

The paper squashes a capsule as a whole. Its authors' code squashes chunks of 8 numbers in hidden layers, and its
backward pass keeps the diagonal of squash's Jacobian alone, which is no gradient of any loss. Both are tried by our
recipe, and the diagonal also by the recipe of that code, whose exact form is in table 2.

Command: purecaps reproduce ablation-squash
Time: about 4 minutes on one H200
Result: pcapsnet2 about 0.75 % by all four, at most 0.2 points apart
"""

from __future__ import annotations

from collections.abc import Sequence

from purecaps.experiments.paper import comparison, mnist
from purecaps.experiments.paper.cells import error_text, mean_text, plain
from purecaps.experiments.paper.comparison import MS, Variant, at_scale, paper_network, training
from purecaps.experiments.paper.curves import CurveJob
from purecaps.experiments.paper.entry import Entry, Results, Row, Shown, Table
from purecaps.experiments.paper.job import Job
from purecaps.experiments.paper.scale import Scale
from purecaps.train.recipes import RECIPES

MODELS = ("pcapsnet2",)
CHUNKS = {"whole": (None, "whole capsules"), "chunk8": (8, "chunks of 8")}
GRADIENTS = {"exact": "exact gradient", "diagonal": "diagonal gradient"}
AUTHORS = "ablation-squash/pcapsnet2-authors-diagonal"


def variants(scale: Scale) -> list[Variant]:
    found = []
    for model in at_scale(MODELS, scale):
        for leaf, (chunk, squashed) in CHUNKS.items():
            for gradient, text in GRADIENTS.items():
                if chunk is None and gradient == "exact":
                    job = paper_network(model, scale)
                else:
                    name = f"ablation-squash/{model}-{leaf}-{gradient}"
                    ms = MS["conv2d"] if gradient == "diagonal" else MS[model]
                    job = training(name, model, scale, ms=ms, squash_chunk=chunk, squash_gradient=gradient)
                found.append(Variant(model, f"{squashed}, {text}", (job,)))
    return found


def authors_job(scale: Scale) -> CurveJob:
    """What the authors' code does, to the gradient; all training images but those held out."""
    recipe = RECIPES["authors"].replace(**mnist.CHANGES, val_size=5000, squash_gradient="diagonal")
    return training(AUTHORS, "pcapsnet2", scale, recipe=recipe, recipe_name="authors", ms=MS["conv2d"])


def plan(scale: Scale) -> Sequence[Job]:
    return [*comparison.jobs_of(variants(scale)), authors_job(scale)]


def show(results: Results) -> Shown:
    listed = variants(results.scale)
    picture = comparison.picture(
        listed,
        results,
        "Test errors with whole and chunk-wise squash and with both gradients, seed by seed.",
        "All by our recipe.",
    )
    tables = (comparison.table("Squash", listed, results), _authors_table(results))
    return Shown(tables, (picture,), _findings(listed, results))


def _authors_table(results: Results) -> Table:
    exact = mnist.name_of("pcapsnet2", "authors")
    rows = [
        Row(
            plain(
                text,
                mnist.PAPER["pcapsnet2"].text(),
                error_text(results.values(name)),
                mean_text(results.values(name, "train_error")),
            )
        )
        for text, name in (("diagonal gradient, as in their code", AUTHORS), ("exact gradient (table 2)", exact))
        if name == AUTHORS or results.values(name)
    ]
    columns = ("pcapsnet2 by the authors' code", "paper, %", "ours, %", "training error, %")
    note = "With the diagonal 5,000 training images are held out; table 2 trains on all."
    return Table("The authors' recipe", columns, tuple(rows), columns[1:], note)


def _findings(listed: Sequence[Variant], results: Results) -> tuple[str, ...]:
    sentences = []
    for model in dict.fromkeys(variant.group for variant in listed):
        base, *others = (variant for variant in listed if variant.group == model)
        found = {other.text: comparison.error_difference(other, base, results) for other in others}
        told = "; ".join(f"{text}: {apart.points}" for text, apart in found.items() if apart is not None)
        if told:
            sentences.append(f"{model}, against {base.text}: {told}.")
    return tuple(sentences)


ENTRY = Entry("ablation-squash", "Whole and chunk-wise squash, two gradients", "beyond the paper", __doc__, plan, show)
