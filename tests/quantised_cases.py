"""Small networks that together use every part of the arithmetic, for tests of quantised forms."""

import torch

from purecaps.evaluate.trained import TrainedModel
from purecaps.models import Layer, ModelInfo, PCapsNet


def own(layers, in_shape, classes=3, *, image_shape=None, augment=(), pixel_scale=1 / 255, slope=0.1, **options):
    """An untrained network of one's own layers."""
    model = PCapsNet(layers, in_shape=in_shape, num_classes=classes, **options).eval()
    model.reset_parameters(torch.Generator().manual_seed(1))
    for block in model.capsule_blocks():
        block.negative_slope = slope
    names = tuple(f"class {number}" for number in range(classes))
    info = ModelInfo(
        "my-net", in_shape, image_shape or in_shape, classes, {}, names, augment=augment, pixel_scale=pixel_scale
    )
    return TrainedModel(model, info)


def raw_images(trained, count=9, seed=3):
    """Random raw images; the first is blank, the second white."""
    shape = (count, *trained.info.image_shape)
    images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    images[0], images[1] = 0, 255
    return images


CASES = {
    "groups and padding": own([Layer(2, None, 6), Layer(3, 3, 2, g=2, padding=1), Layer(None, 2, 3, g=2)], (2, 9, 7)),
    "chunks, strides and the longest of several": own(
        [Layer(2, None, 8, stride=2), Layer(None, 4, 4, kernel=5, padding=2)], (1, 9, 11), squash_chunk=4, pool="max"
    ),
    "the mean of several": own([Layer(1, None, 5), Layer(None, 5, 7, padding=1)], (1, 7, 5)),
    "standardised colours, padded": own(
        [Layer(1, None, 4, padding=1), Layer(None, 2, 5, kernel=8)],
        (3, 8, 8),
        mean=(0.1, 0.2, 0.3),
        std=(0.5, 0.6, 0.7),
    ),
    "a crop": own(
        [Layer(1, None, 4), Layer(None, 2, 5, kernel=6)], (1, 8, 8), image_shape=(1, 13, 11), augment=("crop:8", "flip")
    ),
    "one layer": own([Layer(None, None, 3, kernel=4)], (1, 4, 4), 2, slope=0.25, pixel_scale=1 / 256),
}
