"""One row of questions: a network, a mode and a batch size, with the inputs that all contenders are given."""

from __future__ import annotations

import torch
from torch import Tensor

from purecaps.experiments.bench.parity import Truth
from purecaps.experiments.bench.subjects import Subject
from purecaps.models import PCapsNet

# Different images in a batch, which repeats them: the specification is slow, and so it covers every image.
DISTINCT = {"forward": 16, "train": 16, "inference": 128}


class Case:
    """What is measured at once.

    Args:
        subject: the network.
        mode: one of `MODES`.
        batch: images in a call.
        device: where to run.
        precision: "fp32", "tf32" or "bf16" for float images; inference is in float16 on CUDA and float32 elsewhere.
    """

    def __init__(self, subject: Subject, mode: str, batch: int, device: torch.device, precision: str) -> None:
        self.subject, self.mode, self.batch, self.device = subject, mode, batch, device
        self.precision = inference_precision(device) if mode == "inference" else precision
        self.specification = subject.build("reference", mode == "inference").to(device, torch.float64).eval()
        distinct = min(batch, DISTINCT[mode])
        index = torch.arange(batch) % distinct
        images = some_images(distinct, self.specification.in_shape, in_bytes=mode == "inference")
        self.images = images[index].to(device)
        self.labels = (index % self.specification.num_classes).to(device)
        self.truth = Truth(self.specification, images.to(device), self.labels[:distinct], index.to(device))

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return torch.float16 if self.precision == "fp16" else torch.float32

    def build(self, impl: str, dtype: torch.dtype | None = None) -> PCapsNet:
        """The network with the specification's weights.

        Args:
            impl: the implementation of its layers.
            dtype: of its weights; None takes the case's.
        """
        network = self.subject.build(impl, self.mode == "inference")
        network.load_state_dict(self.specification.state_dict())
        return network.to(self.device, dtype or self.dtype).train(self.mode == "train")

    def __str__(self) -> str:
        return f"{self.subject.name}, {self.mode}, batch {self.batch:,}"


def inference_precision(device: torch.device) -> str:
    return "fp16" if device.type == "cuda" else "fp32"


def some_images(count: int, shape: tuple[int, int, int], *, in_bytes: bool) -> Tensor:
    """Images [count, C, H, W]: noise in [0, 1], or in bytes bright blobs on black in different places.

    A trained network is as sure of blobs as of its own images, and does not take all of them for one class; of noise it
    would make a tie. Time depends on neither.
    """
    generator = torch.Generator().manual_seed(0)
    noise = torch.rand(count, *shape, generator=generator)
    if not in_bytes:
        return noise
    _, height, width = shape
    y, x = torch.meshgrid(torch.linspace(0, 1, height), torch.linspace(0, 1, width), indexing="ij")
    middle = 0.25 + 0.5 * torch.rand(2, count, 1, 1, 1, generator=generator)
    radius = 0.07 + 0.15 * torch.rand(count, 1, 1, 1, generator=generator)
    blobs = torch.exp(-((y - middle[0]) ** 2 + (x - middle[1]) ** 2) / radius**2)  # [count, 1, H, W]
    return (255 * blobs * (0.5 + 0.5 * noise)).to(torch.uint8)
