"""Loaders for a run, and the images held out of training."""

import pytest
import torch

from purecaps.data import Dataset, Split
from purecaps.data.preprocess import channel_stats, fit_zca, global_contrast_normalise
from purecaps.errors import ConfigError
from purecaps.train import Recipe
from purecaps.train.prepare import hold_out, prepare


def as_set(images):
    return {image.numpy().tobytes() for image in images}


def test_held_out_images_are_not_trained_on(digits):
    kept, held = hold_out(digits.train, 33)
    assert len(kept) == 160 - 33
    assert len(held) == 33
    assert not as_set(kept.images) & as_set(held.images)
    assert as_set(kept.images) | as_set(held.images) == as_set(digits.train.images)


def test_every_seed_is_judged_by_the_same_images(digits):
    recipe = Recipe(batch_size=8, val_size=20)
    first, second = (prepare(digits, recipe, seeds=[seed], device="cpu").val for seed in (0, 1))
    assert torch.equal(first.images, second.images)


def test_holding_out_everything_is_refused(digits):
    with pytest.raises(ConfigError, match="val_size: expected fewer than the 160 training images, got 160"):
        hold_out(digits.train, 160)


def test_standardising_uses_training_images_only(digits):
    prepared = prepare(digits, Recipe(batch_size=8, val_size=20, preprocess="standardise"), seeds=[0], device="cpu")
    kept = hold_out(digits.train, 20)[0].images.double() / 255
    assert prepared.model_options["mean"] == pytest.approx([kept.mean().item()])
    assert prepared.model_options["std"] == pytest.approx([kept.std(correction=0).item()])


@pytest.mark.parametrize("pixel_scale", [1 / 255, 1 / 256, 1.0])
def test_standardised_images_are_the_same_whatever_pixels_are_multiplied_with(digits, pixel_scale):
    recipe = Recipe(batch_size=160, preprocess="standardise", pixel_scale=pixel_scale)
    prepared = prepare(digits, recipe, seeds=[0], device="cpu")
    mean, std = prepared.model_options["mean"][0], prepared.model_options["std"][0]
    standardised = (prepared.train.batch(0)[0].double() - mean) / std
    assert float(standardised.mean()) == pytest.approx(0, abs=1e-5)
    assert float(standardised.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_standardising_usual_pixels_takes_their_statistics_bit_for_bit(digits):
    prepared = prepare(digits, Recipe(batch_size=8, preprocess="standardise"), seeds=[0], device="cpu")
    assert (prepared.model_options["mean"], prepared.model_options["std"]) == channel_stats(digits.train.images)


def test_whitening_is_fitted_on_training_images_and_applied_to_all():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (120, 3, 6, 5), dtype=torch.uint8, generator=generator)
    train, test = Split(images[:60], torch.arange(60) % 2), Split(images[60:], torch.arange(60) % 2)
    recipe = Recipe(batch_size=60, preprocess="gcn_zca")
    prepared = prepare(Dataset("noise", train, test, ("a", "b")), recipe, seeds=[0], device="cpu")
    expected = fit_zca(global_contrast_normalise(train.images))
    torch.testing.assert_close(prepared.zca.mean, expected.mean)
    torch.testing.assert_close(prepared.zca.matrix, expected.matrix, rtol=1e-4, atol=1e-4)
    batch, _ = next(prepared.test.eval_batches(60))
    torch.testing.assert_close(batch, prepared.zca(global_contrast_normalise(test.images)))
