"""What a network loses in 8-bit integers: of one network, and over the seeds of several runs."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from purecaps.data.types import Dataset, Split
from purecaps.evaluate.trained import TrainedModel
from purecaps.provenance import versions
from purecaps.quant import QuantisedPCapsNet, calibration_images, quantisation_aware, quantise
from purecaps.quant.training import LR
from purecaps.train.log import Watcher

_BATCH = 200


@dataclass(frozen=True)
class Comparison:
    """A network before and after quantising, on the test set.

    Args:
        network: the quantised one; its description says what follows.
        float_mistakes: test images that the network in float takes for another class.
        mistakes: those that the quantised one does.
        differing: those that the two tell differently.
        images: how many there are.
    """

    network: QuantisedPCapsNet
    float_mistakes: int
    mistakes: int
    differing: int
    images: int

    @property
    def float_error(self) -> float:
        return 100 * self.float_mistakes / self.images

    @property
    def error(self) -> float:
        return 100 * self.mistakes / self.images


def compare(
    trained: TrainedModel,
    dataset: Dataset,
    *,
    aware_steps: int = 0,
    lr: float = LR,
    seed: int = 0,
    device: torch.device | str = "cpu",
    watcher: Watcher | None = None,
) -> Comparison:
    """Quantises a network, then reads the test set once with both.

    Args:
        trained: the network in float.
        dataset: training images to calibrate on, and test images.
        aware_steps: steps of quantisation-aware training before; 0 takes none.
        lr: their learning rate.
        seed: of these steps.
        device: where to take them; integers are computed on the CPU.
        watcher: who is told of their progress.
    """
    images = calibration_images(dataset)
    source = trained
    if aware_steps:
        source = quantisation_aware(
            trained, dataset, images, steps=aware_steps, lr=lr, seed=seed, device=device, watcher=watcher
        ).to("cpu")
    network = quantise(source, images)
    expected, found = predictions(trained, dataset.test), predictions(network, dataset.test)
    labels = dataset.test.labels
    comparison = Comparison(
        network=network,
        float_mistakes=int((expected != labels).sum()),
        mistakes=int((found != labels).sum()),
        differing=int((expected != found).sum()),
        images=len(labels),
    )
    record = {
        **network.info.record,
        "test_error": comparison.error,
        "float_test_error": comparison.float_error,
        "calibration_images": len(images),
        "aware_steps": aware_steps,
    }
    network.info = replace(network.info, record=record)
    return comparison


def predictions(network: TrainedModel | QuantisedPCapsNet, split: Split) -> Tensor:
    """The class of every image: int64 [N]. Scores of a quantised network are compared as integers."""
    return torch.cat([network.scores(images).argmax(dim=1) for images in split.images.split(_BATCH)])


def over_seeds(runs: Sequence[Path], dataset: Dataset, **options: Any) -> dict[str, Any]:
    """Compares the network of every run; mean and standard deviation over them, for a JSON file.

    Args:
        runs: folders of finished runs of one model, with different seeds.
        dataset: what they were trained on.
        options: further arguments of `compare`.
    """
    rows: list[dict[str, Any]] = []
    comparisons = []
    for run in runs:
        trained = TrainedModel.from_file(run)
        found = compare(trained, dataset, **options)
        comparisons.append(found)
        rows.append(
            {
                "seed": trained.info.record.get("seed"),
                "float_error": found.float_error,
                "int8_error": found.error,
                "lost_points": found.error - found.float_error,
                "differing_predictions": found.differing,
            }
        )
    network = comparisons[0].network
    return {
        "model": network.info.name,
        "data": dataset.name,
        "recipe": network.info.record.get("recipe"),
        "test_images": comparisons[0].images,
        "calibration_images": network.info.record["calibration_images"],
        "aware_steps": network.info.record["aware_steps"],
        "weights": sum(layer.weight.numel() for layer in network.capsule_layers()),
        "constant_bytes": network.constant_bytes,
        "file_bytes": _file_bytes(network),
        **{name: _spread([row[name] for row in rows]) for name in ("float_error", "int8_error", "lost_points")},
        "runs": rows,
        "versions": versions(torch.device("cpu")),
    }


def _spread(values: Sequence[float]) -> dict[str, float]:
    return {
        "mean": statistics.mean(values),
        "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "max": max(values),
    }


def _file_bytes(network: QuantisedPCapsNet) -> int:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        network.save(path)
        return path.stat().st_size
