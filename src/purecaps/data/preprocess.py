"""Pre-processing of whole data sets: the paper's contrast normalisation and whitening; channel statistics."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from purecaps.errors import ConfigError, DataError
from purecaps.files import atomic_write

WHITENING = "whitening.safetensors"  # what the file beside a network of whitened images is called
# Images at a time: what keeps the temporaries for a whole data set at tens of megabytes.
_CHUNK = 1024


def global_contrast_normalise(images: Tensor, *, s: float = 1.0, eps: float = 1e-9, alpha: float = 10.0) -> Tensor:
    """Equation 5: each image less its mean, over max(eps, sqrt(alpha + its variance)), times s.

    Mean and variance are over all pixels and channels of the image. The paper's alpha is meant for raw
    pixels from 0 to 255; on images scaled to [0, 1] it would drown the variance.

    Args:
        images: raw pixels [N, C, H, W], uint8 or float from 0 to 255.
        s: scale of the result.
        eps: the least divisor.
        alpha: added to the variance, inside the square root.

    Returns:
        float32 [N, C, H, W], or float64 for float64 images.
    """
    _require_images(images)
    dtype = torch.float64 if images.dtype == torch.float64 else torch.float32
    out = torch.empty(images.shape, dtype=dtype, device=images.device)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK].to(dtype)
        centred = chunk - chunk.mean(dim=(1, 2, 3), keepdim=True)
        variance = centred.square().mean(dim=(1, 2, 3), keepdim=True)
        out[start : start + _CHUNK] = s * centred / (alpha + variance).sqrt().clamp_min(eps)
    return out


@dataclass(frozen=True, eq=False)
class Zca:
    """Whitening that stays close to the images: (x - mean) times a symmetric matrix, as `fit_zca` finds it.

    Args:
        mean: the mean image, float32 [D] with D = C * H * W.
        matrix: U diag(1 / (sqrt(S) + epsilon)) U^T, float32 [D, D].
    """

    mean: Tensor
    matrix: Tensor

    def __post_init__(self) -> None:
        side = self.mean.numel()
        if self.mean.shape != (side,) or self.matrix.shape != (side, side):
            raise DataError(
                f"Zca: expected mean [D] and matrix [D, D], got {list(self.mean.shape)} and {list(self.matrix.shape)}"
            )

    def __call__(self, images: Tensor) -> Tensor:
        """Whitens contrast-normalised images [N, C, H, W] on the images' device; float32, same shape."""
        _require_images(images)
        if images[0].numel() != len(self.mean):
            raise DataError(
                f"images: expected C * H * W = {len(self.mean)} as whitening was fitted on, got {list(images.shape)}"
            )
        mean, matrix = self.mean.to(images.device), self.matrix.to(images.device)
        out = torch.empty(images.shape, dtype=torch.float32, device=images.device)
        for start in range(0, len(images), _CHUNK):
            chunk = images[start : start + _CHUNK].to(torch.float32)
            out[start : start + _CHUNK] = ((chunk.flatten(1) - mean) @ matrix).view_as(chunk)
        return out

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes mean and matrix as a safetensors file, whole or not at all."""
        tensors = {"mean": self.mean.contiguous().cpu(), "matrix": self.matrix.contiguous().cpu()}
        with atomic_write(path) as temporary:
            temporary.write_bytes(save(tensors))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Zca:
        """Reads what `save` wrote."""
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise DataError(f"{os.fspath(path)}: cannot be read as a whitening file: {error}") from error
        if set(tensors) != {"mean", "matrix"}:
            raise DataError(
                f"{os.fspath(path)}: expected the tensors mean and matrix, got {', '.join(sorted(tensors))}"
            )
        return cls(**tensors)


def fit_zca(images: Tensor, *, epsilon: float = 0.1) -> Zca:
    """Equations 6 and 7; the product with (X - mean) that equation 7 leaves out is what calling `Zca` does.

    Everything is computed in float64. The covariance is divided by N - 1, as numpy's and torch's `cov` do. It
    is symmetric and positive semi-definite, so its eigenvectors and eigenvalues are its singular vectors and
    values, and are found faster.

    Args:
        images: the chosen images after contrast normalisation, float [N, C, H, W], N >= 2. The paper
            takes 10,000 at random from the training set.
        epsilon: added to the root of each singular value, the paper's 0.1.
    """
    _require_images(images)
    if len(images) < 2:
        raise DataError(f"images: expected at least 2 to fit whitening on, got {len(images)}")
    if not epsilon > 0:
        raise ConfigError(f"epsilon: expected > 0, got {epsilon}")
    chunks = [images[start : start + _CHUNK].flatten(1) for start in range(0, len(images), _CHUNK)]
    mean = torch.stack([chunk.sum(0, dtype=torch.float64) for chunk in chunks]).sum(0) / len(images)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64, device=images.device)
    for chunk in chunks:
        centred = chunk.to(torch.float64) - mean
        covariance.addmm_(centred.T, centred)
    singular, vectors = torch.linalg.eigh(covariance / (len(images) - 1))
    # Rounding leaves the zeros of a rank-deficient covariance slightly negative.
    factors = 1 / (singular.clamp_min(0).sqrt() + epsilon)
    matrix = (vectors * factors) @ vectors.T
    return Zca(mean.to(torch.float32), matrix.to(torch.float32))


def channel_stats(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels of all images, in units of [0, 1].

    Args:
        images: uint8 [N, C, H, W].

    Returns:
        The means and the (population) standard deviations, one a channel; exact, as the sums are integers.
    """
    _require_images(images)
    if images.dtype != torch.uint8:
        raise DataError(f"images: expected uint8, got {images.dtype}")
    totals = torch.zeros(2, images.shape[1], dtype=torch.int64, device=images.device)
    for start in range(0, len(images), _CHUNK):
        chunk = images[start : start + _CHUNK].to(torch.int32)
        totals[0] += chunk.sum(dim=(0, 2, 3))
        totals[1] += chunk.square().sum(dim=(0, 2, 3))
    count = images.numel() // images.shape[1]
    means, deviations = [], []
    for total, squares in totals.T.tolist():
        means.append(total / count / 255)
        deviations.append((count * squares - total * total) ** 0.5 / count / 255)
    return tuple(means), tuple(deviations)


def _require_images(images: Tensor) -> None:
    if images.ndim != 4 or images.numel() == 0:
        raise DataError(f"images: expected at least one image, [N, C, H, W], got {list(images.shape)}")
