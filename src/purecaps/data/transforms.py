"""Random transforms in turn, and the texts a command line names them with: "shift:2", "crop:32,padding=4"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields

from torch import Tensor

from purecaps.data.augment import Affine, Crop, Cutout, Flip, Shift, Transform
from purecaps.data.random import fold
from purecaps.data.tone import Brightness, Contrast, Standardise
from purecaps.errors import ConfigError

TRANSFORMS: dict[str, type[Transform]] = {
    kind.name: kind for kind in (Shift, Crop, Flip, Affine, Cutout, Brightness, Contrast, Standardise)
}


@dataclass(frozen=True)
class Compose:
    """Transforms applied in turn, each with a stream of its own; with none, the images as they are."""

    transforms: tuple[Transform, ...] = ()

    def __call__(self, images: Tensor, key: Tensor) -> Tensor:
        for position, transform in enumerate(self.transforms):
            images = transform(images, fold(key, position))
        return images

    def at_test(self, images: Tensor) -> Tensor:
        for transform in self.transforms:
            images = transform.at_test(images)
        return images

    def out_size(self, height: int, width: int) -> tuple[int, int]:
        for transform in self.transforms:
            height, width = transform.out_size(height, width)
        return height, width

    @property
    def crops_only_at_test(self) -> bool:
        """Whether an evaluated image's pixels keep their values, whichever of them are cut off."""
        return not any(isinstance(transform, Standardise) for transform in self.transforms)

    @property
    def specs(self) -> tuple[str, ...]:
        """The texts that `parse` makes an equal Compose of."""
        return tuple(str(transform) for transform in self.transforms)

    def __str__(self) -> str:
        return " ".join(self.specs)


def parse(specs: Sequence[str]) -> Compose:
    """The transforms that texts such as "shift:2", "crop:32,padding=4" or "flip" name, in their order.

    Args:
        specs: one text a transform: its name, then after a colon its arguments, those that must be given by
            their value alone, the others as name=value.
    """
    if isinstance(specs, str):
        raise ConfigError(f"specs: expected a sequence of texts, got the one text {specs!r}")
    return Compose(tuple(_parse_one(spec) for spec in specs))


def _parse_one(spec: str) -> Transform:
    name, _, text = spec.partition(":")
    kind = TRANSFORMS.get(name.strip())
    if kind is None:
        allowed = ", ".join(known.usage for known in TRANSFORMS.values())
        raise ConfigError(f"transform {spec!r}: unknown name {name.strip()!r}; allowed: {allowed}")
    try:
        return kind(**_arguments(kind, text))
    except ConfigError as error:
        raise ConfigError(f"transform {spec!r}: {error}; allowed: {kind.usage}") from None


def _arguments(kind: type[Transform], text: str) -> dict[str, int | float]:
    known = {field.name: field for field in fields(kind)}
    required = [field.name for field in known.values() if field.default is MISSING]
    positional = iter(required)
    values: dict[str, int | float] = {}
    for item in (part.strip() for part in text.split(",")) if text.strip() else ():
        name, equals, number = (part.strip() for part in item.partition("="))
        if not equals:
            name, number = next(positional, ""), item
        if name not in known:
            raise ConfigError(f"unexpected argument {item!r}")
        if name in values:
            raise ConfigError(f"{name} is given twice")
        values[name] = _number(name, number, whole=known[name].type == "int")
    if missing := [name for name in required if name not in values]:
        raise ConfigError(f"{missing[0]} is missing")
    return values


def _number(name: str, text: str, *, whole: bool) -> int | float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise ConfigError(f"{name} must be a {'whole ' if whole else ''}number, got {text!r}") from None
