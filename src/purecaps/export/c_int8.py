"""A quantised P-CapsNet as plain C99: one source file and a header, integers only, no library at all.

It computes what `quant.arithmetic` computes, bit for bit. `QuantisedLayer` has proven that no accumulator overflows.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.export.arena import arena_size
from purecaps.export.c_int8_templates import HEADER, SOURCE
from purecaps.export.c_parts import CReport, array, common_values, sizes_fields, write_pair
from purecaps.quant import arithmetic
from purecaps.quant.layer import QuantisedLayer
from purecaps.quant.network import QuantisedPCapsNet


def export_c_int8(network: QuantisedPCapsNet, folder: str | Path, *, name: str | None = None) -> CReport:
    """Writes NAME.c and NAME.h into `folder`.

    Args:
        network: a quantised P-CapsNet.
        folder: where to write; it is made if it is not there.
        name: what files are called and symbols begin with, a C identifier; None takes the network's name and "_int8".
    """
    info, layers = network.info, network.capsule_layers()
    sizes = [layer.sizes for layer in layers]
    height, width = sizes[-1].out_size
    if height * width > arithmetic.SCORE_LIMIT >> arithmetic.FACTOR_BITS:
        raise ConfigError(
            f"model: expected a last map of up to 65,535 positions, got {height}x{width}; export it to C in float"
        )
    common = common_values(info, name, "_int8")
    name = str(common["name"])
    arena = arena_size(sizes, last_is_kept=False)
    capsule = max(layer.capsule for layer in sizes)
    tables = [_numbers("uint16_t", "squash_factors", network.table)]
    if network.lengths is not None:
        tables.append(_numbers("uint16_t", "squash_lengths", network.lengths))
    values = {
        **common,
        "score_meaning": _score_meaning(network),
        "weights": "\n\n".join(
            _numbers(kind, f"{name}_{what}_{index}", getattr(layer, tensor))
            for index, layer in enumerate(layers)
            for kind, what, tensor in (("int8_t", "weights", "weight"), ("uint16_t", "multipliers", "multiplier"))
        ),
        "layers": ",\n".join(_layer_row(name, index, layer) for index, layer in enumerate(layers)),
        "layer_count": len(layers),
        "input": sizes[0].in_numbers,
        "arena": arena,
        "capsule": capsule,
        "adds_lengths": int(network.adds_lengths),
        "tables": "\n\n".join(tables),
        "pixel_factors": ", ".join(f"{value}U" for value in network.pixels.factors),
        "pixel_summands": ", ".join(f"{value}U" for value in network.pixels.summands),
        **_constants(),
    }
    source, header = write_pair(folder, HEADER, SOURCE, values)
    return CReport(
        source=source,
        header=header,
        constant_bytes=network.constant_bytes,
        ram_bytes=arena + 4 * (capsule + info.num_classes),
        multiply_adds=network.multiply_adds(),
    )


def _constants() -> dict[str, int]:
    """The numbers of `quant.arithmetic` that the code holds."""
    return {
        "limit": arithmetic.LIMIT,
        "score_limit": arithmetic.SCORE_LIMIT,
        "segments": arithmetic.SEGMENTS,
        "first_bits": arithmetic.FIRST_BITS,
        "first": 1 << arithmetic.FIRST_BITS,
        "beyond_bits": arithmetic.BEYOND_BITS,
        "beyond": 1 << arithmetic.BEYOND_BITS,
        "kept": 1 << arithmetic.KEPT_BITS,
        "first_shift": arithmetic.FIRST_BITS - arithmetic.KEPT_BITS + 1,
        "blend_bits": arithmetic.BLEND_BITS,
        "blend_mask": (1 << arithmetic.BLEND_BITS) - 1,
        "slope_bits": arithmetic.SLOPE_BITS,
        "slope_half": 1 << (arithmetic.SLOPE_BITS - 1),
        "gain_bits": arithmetic.GAIN_BITS,
        "gain_half": 1 << (arithmetic.GAIN_BITS - 1),
        "pixel_bits": arithmetic.PIXEL_BITS,
    }


def _score_meaning(network: QuantisedPCapsNet) -> str:
    if network.adds_lengths:
        return f"Capsule lengths, summed over positions, times {(1 << arithmetic.FACTOR_BITS) - 1}."
    return f"A capsule's length is 1 - exp(-sqrt(score) / {1 << network.fraction})."


def _layer_row(name: str, index: int, layer: QuantisedLayer) -> str:
    scaling = layer.scaling
    numbers = (
        scaling.slope, scaling.gain, scaling.shift, scaling.gain_shift, layer.in_zero, scaling.zero,
    )  # fmt: skip
    fields = ", ".join(f"{number}U" for number in numbers)
    return f"    {{{sizes_fields(layer.sizes)}, {fields},\n     {name}_weights_{index}, {name}_multipliers_{index}}}"


def _numbers(kind: str, name: str, values: Tensor) -> str:
    suffix = "U" if kind.startswith("u") else ""
    return array(kind, name, (f"{value}{suffix}" for value in values.contiguous().flatten().tolist()), per_line=16)
