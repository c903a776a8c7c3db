"""A quantised P-CapsNet as one ONNX file that computes the same integers, checked before it is kept.

Convolutions run in float32 on integers, which is exact below 2^24: every layer's bound is checked. All else is int64,
whose division rounds towards zero. Weights are stored as int8.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from purecaps._version import __version__
from purecaps.data.types import Split
from purecaps.errors import ConfigError
from purecaps.export.c_parts import crop_offset
from purecaps.export.onnx import ExportError, Report, metadata, open_session, random_images, require_packages
from purecaps.files import atomic_write
from purecaps.ops.conv import fold_kernel
from purecaps.quant import arithmetic
from purecaps.quant.layer import QuantisedLayer
from purecaps.quant.network import QuantisedPCapsNet

OPSET = 18
# The oldest format that has this opset: older runtimes can read it too.
IR_VERSION = 8
_EXACT = 1 << 24
_CHECK_BATCH = 250


def export_onnx_int8(
    network: QuantisedPCapsNet,
    path: str | os.PathLike[str],
    *,
    preprocessing: bool = False,
    test: Split | None = None,
) -> Report:
    """Writes a quantised network to one ONNX file, then runs it with onnxruntime: it must give the same integers.

    The graph maps "images" to "scores", int32 [B, K], and to "lengths", float [B, K]: about what the network in float
    would give, for people to look at. The class is the one with the largest score.

    Args:
        network: the network.
        path: the file to write; one that differs is not left behind, and what was at `path` stays.
        preprocessing: False takes float [B, C, H, W] in [0, 1]; True takes raw images, uint8 [B, C, H, W] of the size
            it was trained on, and crops them in the graph.
        test: raw images to compare on; None takes random ones.
    """
    require_packages()
    for index, layer in enumerate(network.capsule_layers()):
        if layer.accumulator_bound >= _EXACT:
            raise ConfigError(
                f"model: expected accumulators below 2^24, which float32 holds exactly, got up to "
                f"{layer.accumulator_bound:,} in layer {index}; export it to C, or to ONNX in float"
            )
    raw = random_images(network.info) if test is None else test.images.cpu()
    network.inputs(raw[:1])
    with atomic_write(path) as temporary:
        temporary.write_bytes(build_model(network, preprocessing=preprocessing).SerializeToString())
        _require_same(network, raw, preprocessing, temporary)
        size = temporary.stat().st_size
    return Report(Path(path), size, OPSET, len(raw), test is not None, 0.0, 0)


class _Graph:
    """Nodes and constants under short names, since names are most of a small network's file."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[tuple[str, bytes, tuple[int, ...]], str] = {}
        self.initialisers: list[Any] = []

    def constant(self, values: Any, dtype: Any = np.int64) -> str:
        from onnx import numpy_helper

        array = np.asarray(values, dtype=dtype)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self.constants:
            self.constants[key] = f"c{len(self.constants)}"
            self.initialisers.append(numpy_helper.from_array(array, self.constants[key]))
        return self.constants[key]

    def add(self, operation: str, *inputs: str | int, output: str | None = None, **attributes: Any) -> str:
        """A node; numbers among its inputs become int64 constants."""
        from onnx import helper

        names = [self.constant(each) if isinstance(each, int) else each for each in inputs]
        output = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operation, names, [output], **attributes))
        return output

    def cast(self, value: str, kind: str, output: str | None = None) -> str:
        from onnx import TensorProto

        return self.add("Cast", value, to=getattr(TensorProto, kind), output=output)

    def reshape(self, value: str, *sizes: int) -> str:
        return self.add("Reshape", value, self.constant(sizes))

    def sum_last(self, value: str) -> str:
        return self.add("ReduceSum", value, self.constant([-1]), keepdims=1)

    def round_divide(self, value: str, by: str | int, half: str | int) -> str:
        """As `arithmetic.round_shift`: division rounds towards zero, so half goes with the sign."""
        # Not Sign: onnxruntime 1.31 says that the sign of 2,273,323,871 is -1.
        away = self.add("Where", self.add("Less", value, 0), self.negated(half), half)
        return self.add("Div", self.add("Add", value, away), by)

    def negated(self, value: str | int) -> str | int:
        return -value if isinstance(value, int) else self.add("Neg", value)

    def count(self, value: str, powers: range) -> str:
        """How many of 2^power are at most each value; values end in an axis of 1."""
        bounds = self.constant([1 << power for power in powers])
        return self.sum_last(self.cast(self.add("GreaterOrEqual", value, bounds), "INT64"))

    def look_up(self, squares: str, table: Tensor) -> str:
        """The table's value for sums of squares below its end; those before it take its first value."""
        inside = self.add("Max", squares, 1 << arithmetic.FIRST_BITS)
        shift = self.count(inside, range(arithmetic.KEPT_BITS, arithmetic.BEYOND_BITS))
        powers = self.constant([1 << power for power in range(arithmetic.BEYOND_BITS - arithmetic.KEPT_BITS + 1)])
        kept = self.add("Div", inside, self.add("Gather", powers, shift))
        piece = self.add("Div", kept, 1 << arithmetic.BLEND_BITS)
        blend = self.add("Sub", kept, self.add("Mul", piece, 1 << arithmetic.BLEND_BITS))
        first = arithmetic.FIRST_BITS - arithmetic.KEPT_BITS + 1
        octave = self.add("Mul", self.add("Sub", shift, first), arithmetic.SEGMENTS)
        index = self.add("Add", octave, self.add("Sub", piece, arithmetic.SEGMENTS))
        values = table.long().numpy()
        left = self.add("Gather", self.constant(values), index)
        rise = self.add("Mul", self.add("Gather", self.constant(np.diff(values)), index), blend)
        one = 1 << arithmetic.BLEND_BITS
        return self.add("Add", left, self.round_divide(rise, one, one // 2))


def build_model(network: QuantisedPCapsNet, *, preprocessing: bool = False, capsules: bool = False) -> Any:
    """A quantised network as an ONNX model.

    Args:
        network: the network.
        preprocessing: as for `export_onnx_int8`.
        capsules: also give every layer's squashed capsules, as float [B, O, H', W', g, m, p]: "layer1", "layer2", ...
    """
    from onnx import TensorProto, checker, helper

    info, graph = network.info, _Graph()
    shape = info.image_shape if preprocessing else info.in_shape
    kind = TensorProto.UINT8 if preprocessing else TensorProto.FLOAT
    layers = network.capsule_layers()
    value = _pixels(graph, network, preprocessing)
    extra = []
    for number, layer in enumerate(layers, start=1):
        t = _fixed_point(graph, layer, value)
        last = number == len(layers)
        if last:
            _scores(graph, network, t)
        else:
            value = _squash(graph, layer, t, network.table)
        if capsules:
            s, name = layer.sizes, f"layer{number}"
            _capsules(graph, layer, t if last else value, name, network.fraction if last else None)
            sizes: list[str | int | None] = ["batch", s.O, *s.out_size, s.g, s.m, s.p]
            extra.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            info.name,
            [helper.make_tensor_value_info("images", kind, ["batch", *shape])],
            [
                helper.make_tensor_value_info("scores", TensorProto.INT32, ["batch", info.num_classes]),
                helper.make_tensor_value_info("lengths", TensorProto.FLOAT, ["batch", info.num_classes]),
                *extra,
            ],
            graph.initialisers,
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="purecaps",
        producer_version=__version__,
    )
    helper.set_model_props(model, {**metadata(info, raw=preprocessing), "arithmetic": "int8"})
    checker.check_model(model, full_check=True)
    return model


def _pixels(graph: _Graph, network: QuantisedPCapsNet, preprocessing: bool) -> str:
    """Images as the first layer's capsules [B, 1, H, W, C], in steps from zero, int64."""
    info, pixels = network.info, network.pixels
    if preprocessing:
        top, left = crop_offset(info.image_shape, info.in_shape, info.augment)
        _, height, width = info.in_shape
        ends = graph.constant([top + height, left + width])
        cropped = graph.add("Slice", "images", graph.constant([top, left]), ends, graph.constant([2, 3]))
        value = graph.cast(cropped, "INT64")
    else:
        scaled = graph.add("Mul", "images", graph.constant(1 / info.pixel_scale, np.float32))
        value = graph.cast(graph.add("Round", scaled), "INT64")
        value = graph.add("Clip", value, 0, 255)
    one = 1 << arithmetic.PIXEL_BITS
    if any(factor != one for factor in pixels.factors) or any(pixels.summands):
        column = (-1, 1, 1)
        factors, summands = (np.reshape(each, column) for each in (pixels.factors, pixels.summands))
        value = graph.add("Add", graph.add("Mul", value, graph.constant(factors)), graph.constant(summands))
        value = graph.add("Min", graph.add("Div", value, one), 255)
    if pixels.zero:
        value = graph.add("Sub", value, pixels.zero)
    return graph.add("Transpose", value, perm=[0, 2, 3, 1])


def _fixed_point(graph: _Graph, layer: QuantisedLayer, value: str) -> str:
    """As `QuantisedLayer.fixed_point`: [B, O, H', W', g, m, p], int64."""
    s = layer.sizes
    folded = graph.reshape(graph.cast(value, "FLOAT"), -1, s.C, *s.in_size, s.g, s.m, s.n)
    folded = graph.add("Transpose", folded, perm=[0, 5, 4, 1, 6, 2, 3])
    folded = graph.reshape(folded, -1, s.g * s.C * s.n, *s.in_size)
    kernel = graph.cast(graph.constant(fold_kernel(layer.weight).contiguous().numpy(), np.int8), "FLOAT")
    v = graph.add(
        "Conv",
        folded,
        kernel,
        group=s.g,
        kernel_shape=list(s.kernel),
        strides=list(s.stride),
        pads=[*s.padding, *s.padding],
    )
    v = graph.reshape(graph.cast(v, "INT64"), -1, s.m, s.g, s.O, s.p, *s.out_size)
    v = graph.add("Transpose", v, perm=[0, 3, 5, 6, 2, 1, 4])
    multiplier = layer.multiplier.long()[:, None, None, :, None, :]
    smaller = arithmetic.negative_multiplier(multiplier, layer.scaling.slope)
    factor = graph.add(
        "Where", graph.add("Less", v, 0), graph.constant(smaller.numpy()), graph.constant(multiplier.numpy())
    )
    shift = layer.scaling.shift
    t = graph.round_divide(graph.add("Mul", v, factor), 1 << shift, 1 << (shift - 1))
    return graph.add("Clip", t, -arithmetic.LIMIT, arithmetic.LIMIT)


def _squash(graph: _Graph, layer: QuantisedLayer, t: str, table: Tensor) -> str:
    """As `arithmetic.squash`: [B, O, H', W', runs, chunk], int64."""
    s, scaling = layer.sizes, layer.scaling
    runs = graph.reshape(t, -1, s.O, *s.out_size, s.capsule // s.chunk, s.chunk)
    squares = graph.sum_last(graph.add("Mul", runs, runs))
    halvings = graph.count(squares, range(arithmetic.BEYOND_BITS, 54, 2))
    powers = graph.constant([1 << power for power in range(arithmetic.MOST_HALVINGS + 1)])
    power = graph.add("Gather", powers, halvings)
    inside = graph.add("Div", squares, graph.add("Mul", power, power))
    factor = graph.add("Mul", graph.look_up(inside, table), scaling.gain)
    factor = graph.add("Div", graph.add("Add", factor, 1 << (arithmetic.GAIN_BITS - 1)), 1 << arithmetic.GAIN_BITS)
    half = graph.add("Mul", power, 1 << (scaling.gain_shift - 1))
    y = graph.round_divide(graph.add("Mul", runs, factor), graph.add("Mul", half, 2), half)
    return graph.add("Clip", y, -scaling.zero, 255 - scaling.zero)


def _capsules(graph: _Graph, layer: QuantisedLayer, value: str, output: str, fraction: int | None) -> None:
    """A layer's capsules in float; `fraction` where they are fixed-point numbers that are not squashed yet."""
    s, scaling = layer.sizes, layer.scaling
    exponent = scaling.gain_shift - (arithmetic.FRACTION + arithmetic.FACTOR_BITS - arithmetic.GAIN_BITS)
    step = 2.0**exponent / scaling.gain if fraction is None else 2.0**-fraction
    v = graph.add("Mul", graph.cast(value, "FLOAT"), graph.constant(step, np.float32))
    if fraction is not None:
        r = graph.add("ReduceL2", v, graph.constant([4, 5, 6]), keepdims=1)
        length = graph.add("Sub", graph.constant(1, np.float32), graph.add("Exp", graph.add("Neg", r)))
        # A capsule of length zero is zero whatever it is divided by.
        v = graph.add("Div", graph.add("Mul", v, length), graph.add("Max", r, graph.constant(1e-30, np.float32)))
    graph.add("Reshape", v, graph.constant([-1, s.O, *s.out_size, s.g, s.m, s.p]), output=output)


def _scores(graph: _Graph, network: QuantisedPCapsNet, t: str) -> None:
    """The outputs "scores" and "lengths"."""
    s = network.capsule_layers()[-1].sizes
    runs = graph.reshape(t, -1, s.O, s.out_size[0] * s.out_size[1], s.capsule)
    squares = graph.sum_last(graph.add("Mul", runs, runs))  # [B, O, positions, 1]
    axes = graph.constant([2, 3])
    if network.lengths is not None:
        end = (1 << arithmetic.BEYOND_BITS) - 1
        short = graph.add("Mul", squares, int(network.lengths[0]))
        short = graph.add("Div", short, 1 << arithmetic.FIRST_BITS)
        found = graph.look_up(graph.add("Min", squares, end), network.lengths)
        found = graph.add("Where", graph.add("Less", squares, 1 << arithmetic.FIRST_BITS), short, found)
        scores = graph.add("ReduceSum", found, axes, keepdims=0)
        whole = s.out_size[0] * s.out_size[1] * ((1 << arithmetic.FACTOR_BITS) - 1)
        graph.add("Mul", graph.cast(scores, "FLOAT"), graph.constant(1 / whole, np.float32), output="lengths")
    else:
        scores = graph.add("ReduceMax", squares, axes, keepdims=0)
        root = graph.add("Sqrt", graph.cast(scores, "FLOAT"))
        r = graph.add("Mul", root, graph.constant(-(2.0**-network.fraction), np.float32))
        graph.add("Sub", graph.constant(1, np.float32), graph.add("Exp", r), output="lengths")
    graph.cast(graph.add("Min", scores, arithmetic.SCORE_LIMIT), "INT32", output="scores")


def _require_same(network: QuantisedPCapsNet, raw: Tensor, preprocessing: bool, path: Path) -> None:
    session = open_session(path)
    wrong = 0
    for part in raw.split(_CHECK_BATCH):
        ready = network.inputs(part)
        images = part if preprocessing else ready.to(torch.float32) * network.info.pixel_scale
        (found,) = session.run(["scores"], {"images": images.numpy()})
        wrong += int((torch.from_numpy(found) != network(ready)).any(dim=1).sum())
    if wrong:
        raise ExportError(
            f"{network.info.name} in 8-bit integers as ONNX: expected the scores of PyTorch, bit for bit, got others "
            f"for {wrong} of {len(raw)} images; nothing was written"
        )
