"""Using a trained network: from raw images, as files and data sets have them, to class scores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from purecaps.data.preprocess import WHITENING, Zca, global_contrast_normalise
from purecaps.data.transforms import parse
from purecaps.data.types import Split
from purecaps.errors import CheckpointError, ConfigError
from purecaps.models.guided import eval_batch
from purecaps.models.store import ModelInfo, load_model, load_pretrained

WEIGHTS = "model.safetensors"


def weights_file(path: Path) -> Path:
    """The file that a path means, whether there or not: itself, or the one of a run's folder.

    Raises:
        CheckpointError: it is the folder of several seeds, which has none of its own.
    """
    if not path.is_dir():
        return path
    seeds = sorted((file.parent for file in path.glob(f"seed-*/{WEIGHTS}")), key=lambda seed: (len(seed.name), seed))
    if seeds and not (path / WEIGHTS).exists():
        raise CheckpointError(
            f"{path}: expected the folder of one network, got that of several seeds; give one of its seeds, such as "
            f"{seeds[0]}"
        )
    return path / WEIGHTS


@dataclass(frozen=True)
class TrainedModel:
    """A network with the steps that come before it.

    Args:
        model: the network, in eval mode.
        info: what it was trained on and how its input is made.
        zca: whitening, where `info.preprocess` asks for it.
    """

    model: nn.Module
    info: ModelInfo
    zca: Zca | None = None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> TrainedModel:
        """Reads a weights file, or the one of a run's folder."""
        source = weights_file(Path(path))
        model, info = load_model(source)
        if info.preprocess != "gcn_zca":
            return cls(model, info)
        # Seeds that were trained together share one file, in the folder above theirs.
        folders = [source.parent, *([source.parent.parent] if source.parent.name.startswith("seed-") else [])]
        for folder in folders:
            if (folder / WHITENING).is_file():
                return cls(model, info, Zca.load(folder / WHITENING))
        raise CheckpointError(f"{source}: expects whitened images: expected {WHITENING} beside it, found none")

    @classmethod
    def from_package(cls, name: str) -> TrainedModel:
        """The packaged weights of a registered model."""
        return cls(*load_pretrained(name, None, 10, {}))

    def to(self, device: torch.device | str) -> TrainedModel:
        return TrainedModel(self.model.to(device), self.info, self.zca)

    def inputs(self, images: Tensor) -> Tensor:
        """Raw uint8 images [N, C, H, W] as the network's input."""
        if images.dtype != torch.uint8 or images.shape[1:] != self.info.image_shape:
            raise ConfigError(
                f"images: expected uint8 [N, {', '.join(map(str, self.info.image_shape))}], as the network was "
                f"trained on, got {images.dtype} {list(images.shape)}"
            )
        return self._ready(images)

    def _ready(self, pixels: Tensor) -> Tensor:
        """Pixels from 0 to 255, of any type, as the network's input; it can be differentiated."""
        if self.zca is not None:
            ready = self.zca(global_contrast_normalise(pixels))
        else:
            ready = pixels.to(torch.float32) * self.info.pixel_scale
        return parse(self.info.augment).at_test(ready)

    def on_unit_pixels(self) -> UnitPixels:
        """The network, with all that comes before it, as a module of images in [0, 1]."""
        return UnitPixels(self)

    @torch.inference_mode()
    def scores(self, images: Tensor) -> Tensor:
        """Class scores [N, K] of raw uint8 images [N, C, H, W]."""
        scores: Tensor = self.model(self.inputs(images))
        return scores

    def batches(self, split: Split, batch_size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """A split as the network's input, in order, on the network's device."""
        device = next(self.model.parameters()).device
        batch_size = eval_batch(self.model) if batch_size is None else batch_size
        parts = zip(split.images.split(batch_size), split.labels.split(batch_size), strict=True)
        for images, labels in parts:
            yield self.inputs(images.to(device)), labels.to(device)


class UnitPixels(nn.Module):
    """A trained network as attacks want it: whatever it does to its input, it takes raw images scaled to [0, 1].

    Args:
        trained: the network.

    Shape:
        images [B, C, H, W] in [0, 1], of the size of the raw images -> scores [B, num_classes]
    """

    def __init__(self, trained: TrainedModel) -> None:
        super().__init__()
        self.network = trained.model
        self._trained = trained

    def forward(self, images: Tensor) -> Tensor:
        expected = self._trained.info.image_shape
        if tuple(images.shape[1:]) != expected:
            raise ConfigError(
                f"images: expected [B, {', '.join(map(str, expected))}], as the network was trained on, "
                f"got {list(images.shape)}"
            )
        scores: Tensor = self.network(self._trained._ready(images * 255))
        return scores
