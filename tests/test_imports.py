"""What may import what, and what must not be imported at all until it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import purecaps

SOURCE = Path(purecaps.__file__).parent
# Data flows down this list; nothing imports from below itself.
ORDER = [
    "_version",
    "errors",
    "files",
    "provenance",
    "malloc",
    "tensorfile",
    "ops",
    "testing",
    "nn",
    "models",
    "losses",
    "inference",
    "data",
    "train",
    "evaluate",
    "quant",
    "experiments",
    "export",
    "demo",
    "cli",
    "__main__",
]
OPTIONAL = [
    "tensorboard",
    "torch.utils.tensorboard",
    "triton",
    "onnx",
    "onnxruntime",
    "onnxscript",
    "sklearn",
    "scipy",
    "art",
]


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_parts(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: expected absolute imports"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            words = name.split(".")
            if (
                words[0] == "purecaps"
                and len(words) > 1
                and (SOURCE / words[1]).with_suffix(".py").exists() | (SOURCE / words[1]).is_dir()
            ):
                found.add(words[1])
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_imports_from_below_itself(path):
    if path == SOURCE / "__init__.py":
        return
    own = ORDER.index(part_of(path))
    below = {name for name in imported_parts(path) if ORDER.index(name) > own}
    assert not below, f"{path.relative_to(SOURCE)}: expected imports from {ORDER[: own + 1]}, got {below}"


def test_the_package_works_without_its_optional_dependencies():
    program = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None
import torch, purecaps, purecaps.cli, purecaps.train, purecaps.evaluate
purecaps.create_model("pcapsnet2")(torch.rand(1, 1, 28, 28)).sum().backward()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_public_name_of_the_contract_is_documented():
    from purecaps import data, losses, nn, ops

    public = [
        purecaps.create_model, purecaps.list_models, purecaps.PCapsNet, purecaps.Layer, ops.caps_conv2d, ops.caps_block,
        ops.squash, ops.refold, nn.CapsConv2d, nn.CapsBlock, nn.LengthHead, nn.PrimaryCapsules,
        nn.ConvCapsules, nn.FullyConnectedCapsules, *nn.routing.ROUTINGS.values(), losses.margin_loss,
        losses.length_cross_entropy, data.load, data.Dataset, data.Split,
    ]  # fmt: skip
    for thing in public:
        assert thing.__doc__, f"{thing.__name__}: expected a docstring"
