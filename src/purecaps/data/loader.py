"""Batches from a split that stays on the device as uint8 and is augmented there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from purecaps.data.batch_plan import Chain, Warp, encode
from purecaps.data.random import key, permutation
from purecaps.data.transforms import Compose
from purecaps.data.types import Split
from purecaps.errors import ConfigError, DataError
from purecaps.ops import triton as fused

# The streams of a loader's seed: which images, and how they are transformed.
_SHUFFLE, _AUGMENT = 0, 1


class DeviceLoader:
    """Training batches as a pure function of (seed, step), and evaluation batches in order.

    With several seeds, training batches have one more axis S in front: for each seed the batch it would have alone.

    An epoch is a fresh random order of the split, cut into batches. With `drop_last` every batch is full: the
    images left over at the end of an epoch wait for a later order, and a split smaller than one batch is
    gone through again and again, in a fresh order each time, without a break between batches.

    Args:
        split: images and labels.
        batch_size: images a training batch.
        seed: names the order of images and their random transforms; several seeds make several batches at once.
        augment: random transforms of the training batches; evaluation batches get their `at_test`.
        scale: what uint8 pixels are multiplied with; float images are taken as they are.
        device: where the data is kept and batches are made.
        drop_last: False ends every epoch with the images left over, as a smaller batch.
        preprocessed: float32 images [N, C, H, W] to take in place of the split's.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        seed: int | Sequence[int],
        augment: Compose = Compose(),  # noqa: B008 (immutable)
        scale: float = 1 / 255,
        device: torch.device | str = "cpu",
        drop_last: bool = True,
        preprocessed: Tensor | None = None,
    ) -> None:
        _require_batch_size(batch_size)
        images = split.images if preprocessed is None else preprocessed
        if preprocessed is not None:
            _require_preprocessed(preprocessed, len(split))
        self.batch_size = batch_size
        self.seed = seed if isinstance(seed, int) else torch.tensor(list(seed), dtype=torch.int64, device=device)
        self.augment = augment
        self.scale = scale
        self.drop_last = drop_last
        self.images = images.to(device).contiguous()
        self.labels = split.labels.to(device)
        _, channels, height, width = images.shape
        self.in_shape = (channels, *augment.out_size(height, width))
        """(C, H, W) of the batches, after the transforms."""
        self._order: tuple[int, Tensor] | None = None
        self._kernel_plan = encode(augment, height, width)
        self._streams = key(self.seed, _AUGMENT, device=device).view(-1)

    @property
    def steps_per_epoch(self) -> int:
        """Batches an epoch; 1 where the split is smaller than a batch."""
        full, rest = divmod(len(self.labels), self.batch_size)
        return max(1, full) if self.drop_last else full + (rest > 0)

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Images float32 [(S,) B, C, H, W] and labels int64 [(S,) B] of a training step, whichever was asked before."""
        return self.take(self.indices(step), step)

    def indices(self, step: int) -> Tensor:
        """Which images the batch of a training step holds: int64 [(S,) B] on the device."""
        if step < 0:
            raise ConfigError(f"step: expected >= 0, got {step}")
        count = len(self.labels)
        if count < self.batch_size and self.drop_last:
            first, start = divmod(step * self.batch_size, count)
            epochs = torch.arange(first, first + (start + self.batch_size - 1) // count + 1, device=self.labels.device)
            seed = self.seed if isinstance(self.seed, int) else self.seed[:, None]
            orders = permutation(key(seed, _SHUFFLE, epochs), count)  # [(S,) epochs, N]
            return orders.flatten(-2)[..., start : start + self.batch_size]
        epoch, position = divmod(step, self.steps_per_epoch)
        return self.epoch_order(epoch)[..., position * self.batch_size : (position + 1) * self.batch_size]

    def take(self, indices: Tensor, step: int | Tensor) -> tuple[Tensor, Tensor]:
        """The images at `indices` as the training step `step` transforms them, and their labels.

        With `step` as an int64 tensor on the device, this can be captured in a CUDA graph.
        """
        stream = key(self.seed, _AUGMENT, step, device=self.labels.device)
        augment = self.augment if isinstance(self.seed, int) else torch.func.vmap(self.augment)
        return augment(self._as_float(self.images[indices]), stream), self.labels[indices]

    def take_in_order(self, order: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
        """As `batch`, for a step of the epoch whose `order` is given; both tensors stay on the device.

        This can be captured in a CUDA graph. Where Triton is at hand and knows the transforms, it is one kernel.

        Args:
            order: int64 [(S,) N], as `epoch_order` gives it.
            step: int64 [].
        """
        if self._kernel_plan is not None and fused.missing(self.labels.device.type) is None:
            return self._take_fused(order, step, *self._kernel_plan)
        first = step % self.steps_per_epoch * self.batch_size
        offsets = torch.arange(self.batch_size, device=step.device)
        return self.take(order.index_select(-1, first + offsets), step)

    def _take_fused(self, order: Tensor, step: Tensor, chain: Chain, warp: Warp) -> tuple[Tensor, Tensor]:
        from purecaps.data.batch_kernel import launch_batch

        stacked = (*order.shape[:-1], self.batch_size)
        out = torch.empty((*stacked, *self.in_shape), device=self.labels.device)
        labels = torch.empty(stacked, dtype=torch.int64, device=self.labels.device)
        single = order.dim() == 1
        launch_batch(
            self.images,
            self.labels,
            order[None] if single else order,
            step,
            self._streams,
            out[None] if single else out,
            labels[None] if single else labels,
            self.scale if self.images.dtype == torch.uint8 else 1.0,
            chain,
            warp,
            self.steps_per_epoch,
        )
        return out, labels

    def eval_batches(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """All images once, in order and without randomness; the last batch may be smaller."""
        _require_batch_size(batch_size)
        for start in range(0, len(self.labels), batch_size):
            part = slice(start, start + batch_size)
            # Clones, so that no caller can reach into the data.
            images = self._as_float(self.images[part].clone())
            yield self.augment.at_test(images), self.labels[part].clone()

    def epoch_order(self, epoch: int) -> Tensor:
        """The order of all images in an epoch: int64 [(S,) N] on the device."""
        if self._order is None or self._order[0] != epoch:
            stream = key(self.seed, _SHUFFLE, epoch, device=self.labels.device)
            self._order = epoch, permutation(stream, len(self.labels))
        return self._order[1]

    def _as_float(self, images: Tensor) -> Tensor:
        if images.dtype == torch.uint8:
            return images.to(torch.float32).mul_(self.scale)
        return images


def _require_batch_size(batch_size: int) -> None:
    if batch_size < 1:
        raise ConfigError(f"batch_size: expected >= 1, got {batch_size}")


def _require_preprocessed(images: Tensor, count: int) -> None:
    if images.dtype != torch.float32 or images.ndim != 4 or images.numel() == 0:
        raise DataError(f"preprocessed: expected float32 [N, C, H, W], got {images.dtype} {list(images.shape)}")
    if len(images) != count:
        raise DataError(f"preprocessed: expected one image for each of {count} labels, got {len(images)}")
