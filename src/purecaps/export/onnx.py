"""A trained network as one ONNX file, held against PyTorch before it is kept."""

from __future__ import annotations

import contextlib
import copy
import importlib
import json
import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from purecaps._version import __version__
from purecaps.data.transforms import parse
from purecaps.data.types import Split
from purecaps.errors import ConfigError, PurecapsError
from purecaps.evaluate.trained import TrainedModel
from purecaps.files import atomic_write
from purecaps.models.guided import eval_batch
from purecaps.models.store import ModelInfo
from purecaps.nn import CapsConv2d

# Scores are below 1. Five layers in float32 differ by less than 1e-6 between two libraries: ten times that is a fault.
TOLERANCE = 1e-5
_RANDOM_IMAGES = 256
_CHECK_BATCH = 500


class ExportError(PurecapsError):
    """An exported network that does not do what the network does."""


@dataclass(frozen=True)
class Report:
    """What was written and how it compares with PyTorch.

    Args:
        path: the file.
        bytes: its size.
        opset: version of ONNX's operators that it needs.
        images: how many images it was compared on.
        real_images: whether those were a data set's; else they were random.
        max_difference: largest absolute difference of a score.
        differing_predictions: images whose best class differs: ties, all of them, or there would be no file.
    """

    path: Path
    bytes: int
    opset: int
    images: int
    real_images: bool
    max_difference: float
    differing_predictions: int


def export_onnx(
    trained: TrainedModel,
    path: str | os.PathLike[str],
    *,
    preprocessing: bool = False,
    batch: int | None = None,
    test: Split | None = None,
) -> Report:
    """Writes a network to one ONNX file, then runs that file with onnxruntime and compares it with PyTorch.

    The graph maps "images" to "scores" [B, K]. A file that differs from PyTorch is not left behind: what was at `path`
    stays as it was.

    Args:
        trained: the network; it is not changed.
        path: the file to write.
        preprocessing: False takes the network's own input, float [B, C, H, W] in [0, 1]; True takes raw images, uint8
            [B, C, H, W] of the size it was trained on, and scales and crops them in the graph. The network's own
            standardisation is in the graph in both cases.
        batch: None leaves the batch size free, as the dimension "batch"; a number fixes it.
        test: raw images to compare on; None takes random ones.
    """
    require_packages()
    info = trained.info
    if preprocessing and trained.zca is not None:
        raise ConfigError(
            f"preprocessing: expected a network of plain images, got {info.name}, which needs whitened ones "
            f"({info.preprocess}), and the whitening matrix would outweigh it; export it with preprocessing=False and "
            "whiten the images before it, or train it with --preprocess standardise"
        )
    if batch is not None and (not isinstance(batch, int) or batch < 1):
        raise ConfigError(f"batch: expected None or an int >= 1, got {batch!r}")
    raw = random_images(info) if test is None else test.images.cpu()
    trained.inputs(raw[:1])  # images of another kind are refused before the slow part
    network = portable(trained.model)
    graph = _FromRaw(network, info).eval() if preprocessing else network
    with atomic_write(path) as temporary:
        opset = _write(graph, _example(trained, raw, preprocessing, batch), info, temporary, batch)
        size = temporary.stat().st_size
        expected, got = _both_scores(network, trained, raw, preprocessing, batch, temporary)
        difference, differing = _compare(expected, got, f"{info.name} as ONNX")
    return Report(Path(path), size, opset, len(raw), test is not None, difference, differing)


class _FromRaw(nn.Module):
    """A network that takes raw uint8 images, as `TrainedModel.inputs` does."""

    def __init__(self, network: nn.Module, info: ModelInfo) -> None:
        super().__init__()
        self.network = network
        self.scale = info.pixel_scale
        self.crop = parse(info.augment)

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.network(self.crop.at_test(images.to(torch.float32) * self.scale))
        return scores


def require_packages() -> None:
    for name in ("onnx", "onnxscript", "onnxruntime"):
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"export to ONNX: expected the package {name}, found none; pip install onnx onnxscript onnxruntime"
            ) from error


def random_images(info: ModelInfo) -> Tensor:
    """Raw images to compare on where there are no real ones."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (_RANDOM_IMAGES, *info.image_shape), dtype=torch.uint8, generator=generator)


def portable(model: nn.Module) -> nn.Module:
    """A copy in float32 on the CPU, whose capsule convolutions are conv2d: one ONNX operator each."""
    network = copy.deepcopy(model).to("cpu", torch.float32).eval().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, CapsConv2d):
            module.impl = "conv"
    return network


def _example(trained: TrainedModel, raw: Tensor, preprocessing: bool, batch: int | None) -> Tensor:
    # Two images for a free batch: from a single one the tracer would learn that there is always one.
    images = raw[:1].expand(batch or 2, -1, -1, -1).contiguous()
    return images if preprocessing else trained.inputs(images).contiguous()


def _write(network: nn.Module, example: Tensor, info: ModelInfo, path: Path, batch: int | None) -> int:
    """Converts the network, writes it to `path` and returns the opset."""
    program = convert(
        network,
        (example,),
        info.name,
        inputs=["images"],
        outputs=["scores"],
        dynamic_shapes=None if batch else ({0: torch.export.Dim("batch")},),
    )
    program.model.metadata_props.update(metadata(info, raw=example.dtype == torch.uint8))
    program.save(path, external_data=False)
    return int(program.model.opset_imports[""])


def convert(
    network: nn.Module,
    example: tuple[Tensor, ...],
    name: str,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    dynamic_shapes: Any = None,
) -> torch.onnx.ONNXProgram:
    """A module as an ONNX program that says nothing of the machine that it was made on.

    Args:
        network: the module, in float32 on the CPU, with the "conv" implementation.
        example: its arguments.
        name: what to call it, in the file and in errors.
        inputs: names of the arguments.
        outputs: names of the results.
        dynamic_shapes: sizes that stay free, as torch.export takes them.
    """
    from onnxscript import opset18 as op

    def expm1(x: Any) -> Any:
        # ONNX has no expm1, and exp(x) - 1 has no correct digit left at 1e-7. This identity keeps them all.
        return op.Mul(op.Tanh(op.Mul(x, 0.5)), op.Add(op.Exp(x), 1.0))

    try:
        with _quiet(), torch.no_grad():
            program = torch.onnx.export(
                network,
                example,
                dynamo=True,
                input_names=inputs,
                output_names=outputs,
                dynamic_shapes=dynamic_shapes,
                custom_translation_table={torch.ops.aten.expm1.default: expm1},
                verbose=False,
            )
    except ImportError as error:
        raise ConfigError(
            f"export to ONNX: expected an onnxscript that torch {torch.__version__} works with, got {error}; "
            "pip install --upgrade onnx onnxscript onnxruntime"
        ) from error
    except torch.onnx.errors.OnnxExporterError as error:
        reason = str(error.__cause__ or error).strip().splitlines() or ["no reason given"]
        raise ConfigError(
            f"model: expected a network that torch.onnx can convert, got {name}: {reason[0]}; "
            "its weights file can still be used with PyTorch"
        ) from error
    assert program is not None  # None is what the old exporter, dynamo=False, returns
    model = program.model
    _forget_origin(model)
    model.producer_name, model.producer_version = "purecaps", __version__
    model.graph.name = name
    return program


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps back what torch says of itself while it exports: nothing that a user could act on."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")  # torchvision is not installed
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)` is deprecated", FutureWarning)
            yield
    finally:
        registration.setLevel(level)


def _forget_origin(model: Any) -> None:
    """Drops the stack trace of every node: paths of this machine, and nine tenths of a small network's file."""
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    for value in (*model.graph.inputs, *model.graph.initializers.values()):
        value.metadata_props.clear()
    model.graph.metadata_props.clear()


def metadata(info: ModelInfo, *, raw: bool) -> dict[str, str]:
    """What a file says of its network; `raw` where it takes raw uint8 images."""
    plain = "in [0, 1]" if info.preprocess != "gcn_zca" else "whitened"
    error = info.record.get("test_error")
    return {
        "purecaps_version": __version__,
        "model": info.name,
        "class_names": json.dumps(info.class_names),
        "trained_on": Path(info.trained_on).name,  # a set of the user's own is a path on their disk
        "input": "uint8, raw" if raw else f"float, {plain}",
        "pixel_scale": repr(info.pixel_scale),
        **({} if error is None else {"test_error": f"{error:g}"}),
    }


def _both_scores(
    network: nn.Module, trained: TrainedModel, raw: Tensor, preprocessing: bool, batch: int | None, path: Path
) -> tuple[Tensor, Tensor]:
    """Scores [N, K] of the raw images by PyTorch and by onnxruntime."""
    session = open_session(path)
    expected, got = [], []
    for part in raw.split(batch or min(_CHECK_BATCH, eval_batch(trained.model))):
        count = len(part)
        if batch is not None and count < batch:
            part = torch.cat([part, part.new_zeros(batch - count, *part.shape[1:])])
        ready = trained.inputs(part)  # not the graph's own preprocessing: that is held against it
        images = part if preprocessing else ready
        with torch.inference_mode():
            expected.append(network(ready)[:count])
        got.append(torch.from_numpy(session.run(["scores"], {"images": images.numpy()})[0])[:count])
    return torch.cat(expected), torch.cat(got)


def open_session(path: Path) -> Any:
    """onnxruntime with this file, or an error where it cannot load it."""
    import onnxruntime  # type: ignore[import-untyped]

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3  # errors; they are raised as well
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors have no base class
        raise ExportError(
            f"expected a file that onnxruntime {onnxruntime.__version__} can load, got: {str(error).splitlines()[0]}; "
            "nothing was written"
        ) from error


def _compare(expected: Tensor, got: Tensor, what: str) -> tuple[float, int]:
    """The largest difference and how many predictions differ; an error where they differ by more than rounding."""
    if not bool(expected.isfinite().all()):
        bad = int((~expected.isfinite()).any(dim=1).sum())
        raise ExportError(f"{what}: expected finite scores, got NaN or infinity for {bad} of {len(expected)} images")
    difference = float((expected - got).abs().max())
    best, other = expected.argmax(dim=1), got.argmax(dim=1)
    rows = torch.arange(len(expected))
    lead = expected[rows, best] - expected[rows, other]
    differing = best != other
    wrong = int((differing & (lead > TOLERANCE)).sum())
    if not difference <= TOLERANCE or wrong:  # a NaN is not within the tolerance either
        raise ExportError(
            f"{what}: expected the scores of PyTorch within {TOLERANCE:g} and the same predictions, got a largest "
            f"difference of {difference:.3g} and {wrong} other predictions of {len(expected)}; nothing was written"
        )
    return difference, int(differing.sum())
