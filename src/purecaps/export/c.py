"""A P-CapsNet as plain C99: one source file and a header, for any compiler with <math.h>.

The file holds the weights as constants, a table of layers and one loop over it. It allocates nothing: all maps lie in
one static arena, which `export.arena` plans.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.export.arena import arena_size
from purecaps.export.c_parts import CReport, array, common_values, sizes_fields, write_pair
from purecaps.export.c_templates import HEADER, SOURCE
from purecaps.models.pcapsnet import PCapsNet
from purecaps.models.sizes import LayerSizes, layer_sizes


def export_c(trained: TrainedModel, folder: str | Path, *, name: str | None = None) -> CReport:
    """Writes NAME.c and NAME.h into `folder`.

    Args:
        trained: a P-CapsNet; networks of other families, and those that need whitened images, are refused.
        folder: where to write; it is made if it is not there.
        name: what files are called and symbols begin with, a C identifier; None takes the network's name.
    """
    model, info = trained.model, trained.info
    if not isinstance(model, PCapsNet):
        raise ConfigError(f"model: expected a P-CapsNet, got {info.name}; export it to ONNX instead")
    model.require_capsule_blocks()
    if info.preprocess == "gcn_zca":
        raise ConfigError(
            "model: expected one that takes images as they are, got one of whitened images, whose matrix is larger "
            'than most microcontrollers; train it with preprocess "standardise"'
        )
    layers = layer_sizes(model)
    common = common_values(info, name)
    name = str(common["name"])
    weights = [block.conv.kernel().detach().float().cpu() for block in model.capsule_blocks()]
    scale, shift = _input_line(model, info.pixel_scale, info.image_shape[0])
    arena = arena_size(layers, last_is_kept=True)
    capsule = max(layer.capsule for layer in layers)
    values = {
        **common,
        "scale": ", ".join(_float(value) for value in scale),
        "shift": ", ".join(_float(value) for value in shift),
        "weights": "\n\n".join(_kernel(f"{name}_weights_{index}", w) for index, w in enumerate(weights)),
        "layers": ",\n".join(_layer_row(name, index, layer) for index, layer in enumerate(layers)),
        "layer_count": len(layers),
        "input": layers[0].in_numbers,
        "arena": arena,
        "capsule": capsule,
        "pool_max": 1 if model.head.pool == "max" else 0,
    }
    source, header = write_pair(folder, HEADER, SOURCE, values)
    return CReport(
        source=source,
        header=header,
        constant_bytes=4 * sum(w.numel() for w in weights),
        ram_bytes=4 * (arena + capsule + info.num_classes),
        multiply_adds=model.multiply_adds(),
    )


def _input_line(model: PCapsNet, pixel_scale: float, channels: int) -> tuple[list[float], list[float]]:
    """Factor and summand of each channel that turn a raw pixel into the network's input."""
    mean = [0.0] * channels if model.mean is None else model.mean.flatten().tolist()
    std = [1.0] * channels if model.std is None else model.std.flatten().tolist()
    return [pixel_scale / s for s in std], [-m / s for m, s in zip(mean, std, strict=True)]


def _layer_row(name: str, index: int, layer: LayerSizes) -> str:
    return f"    {{{sizes_fields(layer)}, {_float(layer.slope)}, {name}_weights_{index}}}"


def _kernel(name: str, w: Tensor) -> str:
    """A kernel [kh, kw, C, O, g, n, p] as a constant array in that order."""
    return array("float", name, map(_float, w.contiguous().flatten().tolist()), per_line=6)


def _float(value: float) -> str:
    """A float32 with as many digits as it takes to read the same one back."""
    text = f"{value:.9g}"
    return f"{text}F" if "." in text or "e" in text else f"{text}.0F"
