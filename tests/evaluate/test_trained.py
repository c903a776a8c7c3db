"""A trained network with the steps that come before it."""

import pytest
import torch

from purecaps.data import Split
from purecaps.data.preprocess import Zca, global_contrast_normalise
from purecaps.errors import CheckpointError, ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.models import ModelInfo, create_model, save_model

IMAGES = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def save(tmp_path, **changes) -> TrainedModel:
    model = create_model("pcapsnet4", num_classes=3)
    info = ModelInfo(
        "pcapsnet4", (3, 24, 24), (3, 32, 32), 3, {}, ("a", "b", "c"), augment=("crop:24", "flip"), **changes
    )
    save_model(model, tmp_path / "model.safetensors", info)
    return model


@pytest.mark.parametrize("name", ["", "model.safetensors"])
def test_raw_images_are_scaled_and_cropped_at_the_centre(tmp_path, name):
    model = save(tmp_path, pixel_scale=1 / 256)
    trained = TrainedModel.from_file(tmp_path / name)
    expected = model(IMAGES[:, :, 4:28, 4:28].float() / 256)
    torch.testing.assert_close(trained.scores(IMAGES), expected)


def test_a_network_of_whitened_images_brings_its_whitening(tmp_path):
    model = save(tmp_path, preprocess="gcn_zca")
    with pytest.raises(CheckpointError, match=r"expected whitening.safetensors beside it, found none"):
        TrainedModel.from_file(tmp_path)
    zca = Zca(torch.rand(3072), torch.rand(3072, 3072) / 3072)
    zca.save(tmp_path / "whitening.safetensors")
    expected = model(zca(global_contrast_normalise(IMAGES))[:, :, 4:28, 4:28])
    torch.testing.assert_close(TrainedModel.from_file(tmp_path).scores(IMAGES), expected)


def test_seeds_trained_together_share_the_whitening_above_their_folders(tmp_path):
    (tmp_path / "seed-3").mkdir()
    model = save(tmp_path / "seed-3", preprocess="gcn_zca")
    zca = Zca(torch.rand(3072), torch.rand(3072, 3072) / 3072)
    zca.save(tmp_path / "whitening.safetensors")
    expected = model(zca(global_contrast_normalise(IMAGES))[:, :, 4:28, 4:28])
    torch.testing.assert_close(TrainedModel.from_file(tmp_path / "seed-3").scores(IMAGES), expected)


def test_batches_cover_a_split_in_order(tmp_path):
    save(tmp_path)
    batches = list(TrainedModel.from_file(tmp_path).batches(Split(IMAGES, torch.arange(5) % 3), batch_size=2))
    assert [len(labels) for _, labels in batches] == [2, 2, 1]
    assert torch.cat([labels for _, labels in batches]).tolist() == [0, 1, 2, 0, 1]


@pytest.mark.parametrize("images", [IMAGES.float(), IMAGES[:, :1], IMAGES[:, :, :24, :24]])
def test_images_of_another_kind_are_refused(tmp_path, images):
    save(tmp_path)
    with pytest.raises(
        ConfigError, match=r"images: expected uint8 \[N, 3, 32, 32\], as the network was trained on, got"
    ):
        TrainedModel.from_file(tmp_path).scores(images)
