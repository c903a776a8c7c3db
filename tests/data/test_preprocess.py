from __future__ import annotations

import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from purecaps.data import preprocess
from purecaps.data.preprocess import Zca, channel_stats, fit_zca, global_contrast_normalise
from purecaps.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a handful of images spans several chunks and a partial one."""
    monkeypatch.setattr(preprocess, "_CHUNK", 5)


def raw_images(count: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)


def correlated_images(count: int, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    side = math.prod(shape)
    mixing = torch.randn(side, side, generator=generator, dtype=torch.float64)
    flat = torch.randn(count, side, generator=generator, dtype=torch.float64) @ mixing + 3
    return flat.view(count, *shape)


def covariance(images: Tensor) -> Tensor:
    return torch.cov(images.flatten(1).double().T)


def test_contrast_normalisation_is_equation_5() -> None:
    images = raw_images(12, 3, 4, 5)
    out = global_contrast_normalise(images, s=2.0)
    assert out.dtype == torch.float32
    for image, got in zip(images.tolist(), out, strict=True):
        pixels = [image[k][i][j] for i in range(4) for j in range(5) for k in range(3)]
        mean = sum(pixels) / (3 * 4 * 5)
        spread = math.sqrt(10 + sum((pixel - mean) ** 2 for pixel in pixels) / (3 * 4 * 5))
        expected = [[[2 * (p - mean) / max(1e-9, spread) for p in row] for row in plane] for plane in image]
        torch.testing.assert_close(got, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_contrast_normalisation_keeps_float64_and_takes_float_pixels() -> None:
    images = raw_images(7, 1, 3, 3)
    exact = global_contrast_normalise(images.double())
    assert exact.dtype == torch.float64
    torch.testing.assert_close(global_contrast_normalise(images).double(), exact, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(global_contrast_normalise(images.float()), global_contrast_normalise(images))


def test_contrast_normalisation_of_a_flat_image_is_zero() -> None:
    flat = torch.full((2, 3, 4, 4), 77, dtype=torch.uint8)
    assert torch.equal(global_contrast_normalise(flat), torch.zeros(2, 3, 4, 4))
    assert torch.equal(global_contrast_normalise(flat, alpha=0), torch.zeros(2, 3, 4, 4))


def test_contrast_normalisation_divides_by_eps_at_least() -> None:
    images = torch.tensor([1.0, 3.0]).view(1, 1, 1, 2)
    out = global_contrast_normalise(images, alpha=0, eps=4.0)
    assert out.flatten().tolist() == [-0.25, 0.25]


def test_whitening_is_equation_7_with_its_product() -> None:
    images = correlated_images(23, 2, 3, 2)
    flat = images.flatten(1).numpy()
    mean = np.array([flat[:, d].sum() / 23 for d in range(12)])
    cov = np.array(
        [[((flat[:, a] - mean[a]) * (flat[:, b] - mean[b])).sum() / 22 for b in range(12)] for a in range(12)]
    )
    u, s, _ = np.linalg.svd(cov)
    expected = np.stack([u @ np.diag(1 / (np.sqrt(s) + 0.1)) @ u.T @ (x - mean) for x in flat])
    whitened = fit_zca(images)(images)
    assert whitened.shape == images.shape
    assert whitened.dtype == torch.float32
    torch.testing.assert_close(whitened.flatten(1).double(), torch.from_numpy(expected), rtol=1e-4, atol=1e-5)


def test_whitening_gives_unit_covariance_as_epsilon_goes_to_zero() -> None:
    images = correlated_images(403, 3, 2, 2)
    identity = torch.eye(12, dtype=torch.float64)
    assert (covariance(images) - identity).abs().max() > 1
    torch.testing.assert_close(covariance(fit_zca(images, epsilon=1e-9)(images)), identity, rtol=0, atol=1e-4)
    assert (covariance(fit_zca(images)(images)) - identity).abs().max() > 0.01


def test_whitening_of_images_that_span_no_more_than_a_plane_is_finite() -> None:
    # As after contrast normalisation, which takes one dimension out, and with fewer images than pixels.
    images = global_contrast_normalise(raw_images(9, 3, 3, 3))
    zca = fit_zca(images)
    assert torch.isfinite(zca(images)).all()
    torch.testing.assert_close(zca.matrix, zca.matrix.T)
    assert torch.linalg.eigvalsh(zca.matrix.double()).max() < 10.01


def test_whitening_applies_to_images_it_was_not_fitted_on() -> None:
    images = correlated_images(31, 1, 2, 3)
    zca = fit_zca(images[:20])
    assert torch.equal(zca(images)[20:23], zca(images[20:23]))


def test_whitening_survives_saving(tmp_path: Path) -> None:
    images = correlated_images(20, 2, 2, 2)
    zca = fit_zca(images)
    zca.save(tmp_path / "new" / "zca.safetensors")
    loaded = Zca.load(tmp_path / "new" / "zca.safetensors")
    assert torch.equal(loaded.mean, zca.mean)
    assert torch.equal(loaded.matrix, zca.matrix)
    assert torch.equal(loaded(images), zca(images))
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["zca.safetensors"]


def test_a_file_that_is_no_whitening_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "zca.safetensors"
    with pytest.raises(DataError, match=r"zca\.safetensors: cannot be read as a whitening file"):
        Zca.load(path)
    path.write_bytes(pickle.dumps({"mean": 1}))
    with pytest.raises(DataError, match=r"zca\.safetensors: cannot be read as a whitening file"):
        Zca.load(path)
    save_file({"mean": torch.zeros(4), "weight": torch.zeros(4, 4)}, path)
    with pytest.raises(DataError, match="expected the tensors mean and matrix, got mean, weight"):
        Zca.load(path)
    save_file({"mean": torch.zeros(4), "matrix": torch.zeros(4, 3)}, path)
    with pytest.raises(DataError, match=r"expected mean \[D\] and matrix \[D, D\], got \[4\] and \[4, 3\]"):
        Zca.load(path)


def test_whitening_refuses_what_it_cannot_fit_or_was_not_fitted_on() -> None:
    with pytest.raises(DataError, match="expected at least 2 to fit whitening on, got 1"):
        fit_zca(torch.zeros(1, 1, 2, 2))
    with pytest.raises(ConfigError, match=r"epsilon: expected > 0, got -0\.1"):
        fit_zca(torch.zeros(3, 1, 2, 2), epsilon=-0.1)
    with pytest.raises(DataError, match=r"C \* H \* W = 4 .* got \[3, 1, 2, 3\]"):
        fit_zca(correlated_images(9, 1, 2, 2))(torch.zeros(3, 1, 2, 3))
    for function in (fit_zca, global_contrast_normalise, channel_stats):
        with pytest.raises(DataError, match=r"expected at least one image, \[N, C, H, W\], got \[0, 1, 2, 2\]"):
            function(torch.zeros(0, 1, 2, 2, dtype=torch.uint8))


def test_channel_statistics_are_those_of_all_pixels() -> None:
    images = raw_images(13, 3, 4, 5)
    images[:, 1] //= 3
    mean, std = channel_stats(images)
    pixels = images.numpy().astype(np.float64) / 255
    np.testing.assert_allclose(mean, pixels.mean(axis=(0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, pixels.std(axis=(0, 2, 3)), rtol=1e-12)


def test_channel_statistics_of_a_flat_channel_are_exact() -> None:
    assert channel_stats(torch.full((7, 1, 3, 3), 255, dtype=torch.uint8)) == ((1.0,), (0.0,))


def test_channel_statistics_of_float_images_are_refused() -> None:
    with pytest.raises(DataError, match=r"images: expected uint8, got torch\.float32"):
        channel_stats(torch.zeros(2, 1, 3, 3))
