"""Mixup: the network is shown mixtures of two images of the batch, and is to answer with the same mixture of labels."""

from __future__ import annotations

from torch import Tensor

from purecaps.data.random import uniform

STREAM = 3  # of a run's seed, beside the loader's two and the adversary's


def mixed(images: Tensor, targets: Tensor, most: float, stream: Tensor) -> tuple[Tensor, Tensor]:
    """Each image with a share of the one before it in the batch, and their targets likewise (Zhang et al. 2018).

    Neighbours are strangers: batches come in random order. Shares are uniform in [0, most) where the authors draw them
    from a Beta distribution: with `most` up to a half, every image stays the larger part of its own mixture.

    Args:
        images: [(S,) B, C, H, W].
        targets: class probabilities [(S,) B, K].
        most: the largest share of the other image.
        stream: key of the shares, [] or [S].
    """
    shares = most * uniform(stream, targets.shape[-2:-1])  # [(S,) B]
    return _with_neighbour(images, shares), _with_neighbour(targets, shares)


def _with_neighbour(values: Tensor, shares: Tensor) -> Tensor:
    batch = shares.dim() - 1
    weights = shares.view(*shares.shape, *(1 for _ in values.shape[batch + 1 :]))
    return values.lerp(values.roll(1, dims=batch), weights)
