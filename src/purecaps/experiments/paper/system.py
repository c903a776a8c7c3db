"""A network of other authors: how it is trained, and the row and the line that it has in tables 1 and 3 and the zoo."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from purecaps.data.transforms import parse
from purecaps.experiments.paper.budgets import BUDGETS, Budget
from purecaps.experiments.paper.cells import (
    NONE,
    NOT_RUN,
    error_text,
    fit_note,
    mean_text,
    plain,
    quoted_row,
    verdict_cell,
)
from purecaps.experiments.paper.entry import Results, Row
from purecaps.experiments.paper.figures import Line
from purecaps.experiments.paper.scale import Scale
from purecaps.experiments.paper.training import TrainingJob
from purecaps.experiments.paper.verdict import Published, judge, learned
from purecaps.models.decoder import count_parameters
from purecaps.models.registry import build_model
from purecaps.train.recipe import Recipe
from purecaps.train.recipes import CIFAR_RECIPES, RECIPES

SEEDS = 3
LONG_SECONDS = 300  # a training that takes longer, by its estimate, has one seed; on CIFAR-10 all have one
CHANGES = {"checkpoint_every": 2500, "precision": "tf32"}  # one precision for all: their times are compared
SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}
AUTHORS, OURS = "its authors'", "ours"
NOTE = (
    "Other systems are quoted until they have been run. Then parameters are those of the network here, decoder "
    "included, and steps are ours of their authors', whose schedule shrinks with them; where no authors' steps are "
    "named, they are not known. The training error of the larger ones is that of 10,000 images. docs/zoo.md says where "
    "a network differs from the published one."
)


@dataclass(frozen=True)
class System:
    """A network on a data set, with what was published of it.

    Args:
        home: the entry whose table it stands in, and whose folder has its results.
        leaf: its name there.
        text: what tables call it.
        label: what pictures call it.
        model: a registered model's name.
        recipe: the name of the recipe that it is trained by.
        data: the data set's name.
        error: what was published, in percent; None where nothing was.
        parameters: how many were published; None where it is not said.
        by: whose recipe it is.
        steps_known: whether the recipe's steps are its authors' own.
        note: what a reader of its verdict must know.
    """

    home: str
    leaf: str
    text: str
    label: str
    model: str
    recipe: str
    data: str = "mnist"
    error: Published | None = None
    parameters: float | None = None
    by: str = AUTHORS
    steps_known: bool = True
    note: str = ""

    @property
    def name(self) -> str:
        """Its job's. All of these names match the pattern *zoo*, and beside them only that of their steps' times."""
        return f"zoo/{self.leaf}-{self.data}" if self.home == "zoo" else f"{self.home}/zoo-{self.leaf}"

    @property
    def budget(self) -> Budget:
        """How many of the recipe's steps are taken, whose schedule shrinks with them."""
        return BUDGETS[self.name]

    @property
    def steps(self) -> int:
        return self.budget.steps

    @property
    def ms(self) -> float:
        return self.budget.ms

    @property
    def whole(self) -> Recipe:
        """The recipe in all its steps."""
        if self.data == "mnist":
            return RECIPES[self.recipe]
        # Plain networks have no recipe of their own for colour images: `get_recipe` standardises them, too.
        return CIFAR_RECIPES.get(self.recipe) or RECIPES[self.recipe].replace(preprocess="standardise", val_size=0)

    @property
    def seeds(self) -> int:
        return SEEDS if self.data == "mnist" and self.steps * self.ms / 1e3 < LONG_SECONDS else 1

    def job(self, scale: Scale) -> TrainingJob:
        """Its seeds one by one: it cannot be stacked, or fills a device alone."""
        scale = scale.for_large()
        return TrainingJob(
            name=self.name,
            scale=scale.name,
            model=scale.model(self.model),
            data=self.data,
            recipe_name=self.by,
            recipe=scale.recipe(self.whole.in_steps(self.steps).replace(**CHANGES)),
            seeds=scale.most(self.seeds),
            images=scale.images,
            together=False,
            ms=(self.ms, self.ms),
            compiled=self.budget.compiled,
        )

    def steps_text(self, steps: int) -> str:
        """The budget beside the authors' steps: "15,000 of 60,000"."""
        if not self.steps_known:
            return f"{steps:,}"
        whole = self.whole.steps
        return f"all {whole:,}" if steps == whole else f"{steps:,} of {whole:,}"


def jobs(systems: Sequence[System], scale: Scale) -> list[TrainingJob]:
    return [system.job(scale) for system in systems]


def row(system: System, results: Results) -> Row:
    """Its line in table 1 or 3: quoted until it has been run."""
    assert system.error is not None
    published, record = system.error, results.get(system.name)
    if record is None:
        size = NONE if system.parameters is None else count_text(system.parameters)
        return quoted_row(system.text, size, NONE, published.text(), NOT_RUN, NONE)
    errors = results.values(system.name)
    notes = filter(None, (fit_note(results, system.name, published), system.note))
    texts = (
        system.text,
        f"{record['parts'][0]['parameters']:,}",
        f"{system.by}, {system.steps_text(record['what']['recipe']['steps'])} steps",
        published.text(),
        error_text(errors),
        mean_text(results.values(system.name, "train_error")),
    )
    return Row((*plain(*texts), verdict_cell(published, errors, "; ".join(notes))))


def line(system: System, results: Results) -> Line:
    """Its row in the picture of table 1 or 3."""
    return Line(system.text, results.values(system.name), system.error, quoted=True)


def findings(systems: Sequence[System], results: Results, where: str) -> tuple[str, ...]:
    """How many of those that were run reach what was published of them."""
    run = [each for each in systems if each.error is not None and results.values(each.name)]
    if not run:
        return ()
    reached = [
        each.text
        for each in run
        if each.error is not None
        and judge(each.error, learned(values := results.values(each.name)) or values).word != "worse"
    ]
    names = f" ({'; '.join(reached)})" if reached else ""
    return (
        f"Of {len(run)} systems of other authors {where}, at the budgets given, {len(reached)} "
        f"reach{'es' if len(reached) == 1 else ''} the published figure{names}.",
    )


def count_text(count: float) -> str:
    """A count as papers have it: 13.4M, 320K."""
    return f"{count / 1e6:.3g}M" if count >= 1e6 else f"{count / 1e3:.3g}K"


@functools.cache
def size_of(model: str, data: str, augment: tuple[str, ...]) -> tuple[int, int]:
    """Parameters that it takes to classify an image, and those of the whole network, its decoder included."""
    channels, height, width = SHAPES[data]
    with torch.device("meta"):
        network = build_model(model, (channels, *parse(augment).out_size(height, width)), 10, {})
    classifying, decoding = count_parameters(network)
    return classifying, classifying + decoding
