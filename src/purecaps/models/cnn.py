"""Plain convolutional networks, which capsule networks are compared with. Their scores are logits, not lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from purecaps.models.images import MNIST, ImageNetwork, ImageShape, check_images
from purecaps.models.registry import register_model

DROPOUT = 0.5  # the rate is not published; this is what Srivastava et al. (2014) advise for hidden units


class ConvNet(ImageNetwork):
    """Layers of PyTorch's own from an image to logits.

    Args:
        layers: what to stack; the last map or vector has `num_classes` channels, and a map is averaged over positions.
        in_shape: the images' (channels, height, width).
        num_classes: how many classes to tell apart.
        mean: per-channel mean to subtract from images; None subtracts nothing.
        std: per-channel standard deviation to divide by; None divides by nothing.

    Shape:
        images [B, C, H, W] in [0, 1] -> logits [B, num_classes]
    """

    def __init__(
        self,
        layers: Sequence[nn.Module],
        *,
        in_shape: ImageShape,
        num_classes: int,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(in_shape, num_classes, mean=mean, std=std)
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.layers(self.standardised(images))
        return scores


@register_model(in_shape=MNIST, recipe="cnn")
def lenet(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """LeNet as Caffe ships it: 431,080 parameters, the substitute of the black-box attacks.

    The paper only says "LeNet". Its authors worked in Caffe, whose examples/mnist/lenet_train_test.prototxt is this
    network: two 5x5 convolutions of 20 and 50 channels, each followed by 2x2 max-pooling and by no ReLU, then 500
    hidden units with the only ReLU. LeCun's own LeNet-5 of 1998 is a smaller network, of 6-16-120-84 units.
    """
    check_images(in_shape, num_classes, smallest=16)
    maps = [
        nn.Conv2d(in_shape[0], 20, 5),
        nn.MaxPool2d(2),
        nn.Conv2d(20, 50, 5),
        nn.MaxPool2d(2),
    ]
    height, width = _map_size(maps, in_shape[1:])
    head = [nn.Flatten(), nn.Linear(50 * height * width, 500), nn.ReLU(), nn.Linear(500, num_classes)]
    return ConvNet([*maps, *head], in_shape=in_shape, num_classes=num_classes, **options)


@register_model(in_shape=MNIST, recipe="cnn")
def cnn_baseline(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """The CNN that Sabour et al. (2017) and the paper compare with: 35.4M parameters.

    Three 5x5 convolutions of stride 1 with 256, 256 and 128 channels, fully connected layers of 328 and 192, and
    dropout before the last. The padding is not published: 2, which keeps the map at 28x28, gives 35,445,522 parameters
    and so the published 35.4M; none would give 13.3M.
    """
    check_images(in_shape, num_classes, smallest=1)
    layers: list[nn.Module] = []
    for inputs, outputs in ((in_shape[0], 256), (256, 256), (256, 128)):
        layers += [nn.Conv2d(inputs, outputs, 5, padding=2), nn.ReLU()]
    numbers = 128 * in_shape[1] * in_shape[2]
    layers += [nn.Flatten(), nn.Linear(numbers, 328), nn.ReLU(), nn.Linear(328, 192), nn.ReLU()]
    layers += [nn.Dropout(DROPOUT), nn.Linear(192, num_classes)]
    return ConvNet(layers, in_shape=in_shape, num_classes=num_classes, **options)


@register_model(in_shape=MNIST, recipe="cnn_small")
def cnn_small(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """pcapsnet2 with plain convolutions: 3,888 parameters too, for a comparison at equal size.

    The same depth, 3x3 kernels, strides and maps, and likewise no bias and no batch norm, so that what differs is the
    layer: 12-10-10-10 channels with ReLU make exactly as many weights for ten classes of grey images.
    """
    return _like_the_papers((12, 10, 10, 10), in_shape, num_classes, options)


@register_model(in_shape=MNIST, recipe="cnn_small", comparison=True)
def cnn_small_work(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """pcapsnet2 with plain convolutions: as many multiply-adds (0.04 % more), 4,761 parameters."""
    return _like_the_papers((13, 11, 11, 12), in_shape, num_classes, options)


@register_model(in_shape=MNIST, recipe="cnn_small", comparison=True)
def cnn_medium(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """pcapsnet3 with plain convolutions: 22,176 parameters too."""
    return _like_the_papers((27, 28, 27, 25), in_shape, num_classes, options)


@register_model(in_shape=MNIST, recipe="cnn_small", comparison=True)
def cnn_medium_work(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """pcapsnet3 with plain convolutions: as many multiply-adds (0.01 % fewer), 27,531 parameters."""
    return _like_the_papers((29, 30, 31, 30), in_shape, num_classes, options)


@register_model(in_shape=MNIST, recipe="cnn_small", comparison=True)
def cnn_large(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """pcapsnet0 with plain convolutions: 170,784 parameters too."""
    return _like_the_papers((76, 76, 79, 80), in_shape, num_classes, options)


@register_model(in_shape=MNIST, recipe="cnn_small", comparison=True)
def cnn_large_work(*, in_shape: ImageShape, num_classes: int, **options: Any) -> ConvNet:
    """pcapsnet0 with plain convolutions: as many multiply-adds (to 0.001 %), 153,846 parameters."""
    return _like_the_papers((74, 73, 74, 74), in_shape, num_classes, options)


def _like_the_papers(
    channels: tuple[int, int, int, int], in_shape: ImageShape, num_classes: int, options: dict[str, Any]
) -> ConvNet:
    """Five plain convolutions with the kernels, strides and maps of the paper's MNIST networks, ReLU between them.

    Args:
        channels: of the four inner maps; of those with the wanted number of parameters or multiply-adds, the most even.
        in_shape: the images' (channels, height, width).
        num_classes: how many classes to tell apart.
        options: of `ConvNet`.
    """
    check_images(in_shape, num_classes, smallest=27)
    widths = (in_shape[0], *channels, num_classes)
    layers: list[nn.Module] = []
    for position, stride in enumerate((2, 1, 2, 1, 1)):
        layers += [nn.Conv2d(widths[position], widths[position + 1], 3, stride=stride, bias=False), nn.ReLU()]
    layers[-1:] = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return ConvNet(layers, in_shape=in_shape, num_classes=num_classes, **options)


def _map_size(layers: Sequence[nn.Module], size: tuple[int, int]) -> tuple[int, int]:
    """(height, width) of the last map of an image of that size."""
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            # Square kernels, one stride and one padding for both directions: what the networks above have.
            kernel, stride, padding = layer.kernel_size[0], layer.stride[0], int(layer.padding[0])
            size = ((size[0] + 2 * padding - kernel) // stride + 1, (size[1] + 2 * padding - kernel) // stride + 1)
        elif isinstance(layer, nn.MaxPool2d):
            size = (size[0] // 2, size[1] // 2)
    return size
