"""Runs exported networks on an emulated microcontroller and compares them with Python: what `make mcu` does.

    python tools/mcu/run.py [--optimise=-O2] [--json FILE]

Each network is exported to C, cross-compiled for a Cortex-M4 and run by QEMU (machine mps2-an386) on real test images.
Flash and RAM are read from the linker's map: what the network's own file takes, and the whole program with start-up
code, harness and libraries, but without the test images. Instructions are those executed, Thumb-2, counted by QEMU; a
chip's cycles are more, and depend on its memory.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from purecaps.evaluate.trained import TrainedModel
from purecaps.export.c import export_c
from purecaps.export.c_int8 import export_c_int8
from purecaps.files import write_json
from purecaps.quant import QuantisedPCapsNet

HERE = Path(__file__).parent
SAMPLE = HERE.parent.parent / "tests" / "assets" / "mnist_sample.npz"  # the first 200 test images
GCC, QEMU = "arm-none-eabi-gcc", "qemu-system-arm"
PACKAGES = "gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm"
CPU = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"]
WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow"]
MACHINE = ["-M", "mps2-an386", "-nographic", "-monitor", "none", "-serial", "none", "-icount", "shift=6"]
MACHINE += ["-semihosting-config", "enable=on,target=native"]
TICKS_PER_INSTRUCTION = 64 / 40  # nanoseconds of an instruction, and of a tick of the 25 MHz timer
FLOAT_TOLERANCE = 5e-6
SECONDS = 300
IMAGES = 100


@dataclass(frozen=True)
class Row:
    """What a network took on the board. Bytes and instructions an image."""

    network: str
    images: int
    flash: int
    flash_whole: int
    ram: int
    ram_whole: int
    stack: int
    instructions: float
    most_instructions: float


def missing() -> list[str]:
    """The tools that are not there."""
    found = [name for name in (GCC, QEMU) if shutil.which(name) is None]
    if GCC not in found:
        library = subprocess.run([GCC, "-print-file-name=libm.a"], capture_output=True, text=True, check=True)
        if not Path(library.stdout.strip()).is_absolute():
            found.append("newlib for arm-none-eabi")
    return found


def run(name: str, images: Tensor, *, int8: bool, optimise: str) -> Row:
    """Exports, compiles, runs and compares one packaged network; stops the program where it differs from Python."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if int8:
            network = QuantisedPCapsNet.from_package(name)
            source = export_c_int8(network, work).source
            expected = network.scores(images)
        else:
            trained = TrainedModel.from_package(name)
            source = export_c(trained, work).source
            expected = trained.scores(images)
        write_images(work / "images.h", images)
        program = build(source, work, expected.shape[1], int8=int8, optimise=optimise)
        lines = emulate(program)
        sizes = parse_map((work / "program.map").read_text(), source.stem)
    classes, ticks, scores, stack = parse_output(lines, int8=int8)
    what = f"{name}, {'8-bit integers' if int8 else 'float'}"
    require_same(what, classes, scores, expected, int8=int8)
    counts = [tick / TICKS_PER_INSTRUCTION for tick in ticks]
    return Row(what, len(images), *sizes, stack, statistics.mean(counts), max(counts))


def write_images(path: Path, images: Tensor) -> None:
    rows = (", ".join(map(str, image.flatten().tolist())) for image in images)
    body = ",\n".join(f"{{{row}}}" for row in rows)
    path.write_text(
        "#include <stdint.h>\n"
        f"#define IMAGES {len(images)}U\n"
        '__attribute__((section(".images"))) static const uint8_t '
        f"images[{len(images)}][{images[0].numel()}] = {{\n{body}\n}};\n"
    )


def build(source: Path, work: Path, classes: int, *, int8: bool, optimise: str) -> Path:
    name, program = source.stem, work / "program.elf"
    defines = {
        "NETWORK_HEADER": f'"{name}.h"',
        "CLASSES": f"{classes}U",
        "SCORE_TYPE": "int32_t" if int8 else "float",
        "CLASSIFY": f"{name}_classify",
        "SCORES": f"{name}_scores" if int8 else f"{name}_lengths",
    }
    common = [GCC, *CPU, optimise, "-ffunction-sections", "-fdata-sections"]
    if int8:
        common.append("-ffreestanding")  # no library at all, not even the compiler's own helpers
    flags = [f"-I{work}", f"-I{HERE}", *(f"-D{key}={value}" for key, value in defines.items())]
    objects = []
    for file in (source, HERE / "main.c", HERE / "startup.c"):
        target = work / f"{file.stem}.o"
        strict = WARNINGS if file == source else [*WARNINGS[:-3], "-Wno-pedantic"]
        subprocess.run([*common, *strict, *flags, "-c", file, "-o", target], check=True)
        objects.append(target)
    link = ["-nostartfiles", "-T", HERE / "link.ld", "-Wl,--gc-sections", f"-Wl,-Map={work / 'program.map'}"]
    libraries = ["-nostdlib"] if int8 else ["-lm"]
    subprocess.run([*common, *link, *objects, *libraries, "-o", program], check=True)
    return program


def emulate(program: Path) -> list[str]:
    done = subprocess.run([QEMU, *MACHINE, "-kernel", program], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode != 0:
        fail(f"{QEMU} ended with {done.returncode}: {done.stderr[-300:]}")
    return (done.stdout + done.stderr).splitlines()  # which of the two depends on QEMU's version


def parse_output(lines: Sequence[str], *, int8: bool) -> tuple[Tensor, list[int], Tensor, int]:
    """(classes [N], ticks of each image, scores [N, K], bytes of stack) from what main.c writes."""
    classes, ticks, scores, stack = [], [], [], 0
    for line in lines:
        words = line.split()
        if words[:1] == ["class"]:
            classes.append(int(words[1], 16))
            ticks.append(int(words[3], 16))
            scores.append([struct.unpack(">i" if int8 else ">f", bytes.fromhex(word))[0] for word in words[4:]])
        elif words[:1] == ["stack"]:
            stack = int(words[1], 16)
    if not classes or not stack:
        fail(f"expected lines of classes and of the stack, got: {' / '.join(lines[-3:])}")
    kind = torch.int32 if int8 else torch.float32
    return torch.tensor(classes), ticks, torch.tensor(scores, dtype=kind), stack


def require_same(what: str, classes: Tensor, scores: Tensor, expected: Tensor, *, int8: bool) -> None:
    if classes.shape != expected.shape[:1]:
        fail(f"{what}: expected {len(expected)} images, got {len(classes)}")
    wrong = int((classes != expected.argmax(dim=1)).sum())
    if int8:
        differing = int((scores != expected).any(dim=1).sum())
        if wrong or differing:
            fail(f"{what}: expected Python's integers, got {differing} images with others and {wrong} other classes")
        return
    difference = float((scores - expected).abs().max())
    if wrong or not difference <= FLOAT_TOLERANCE:
        fail(f"{what}: expected PyTorch's classes and lengths, got {wrong} other classes, difference {difference:.2g}")


def parse_map(text: str, name: str) -> tuple[int, int, int, int]:
    """(flash, flash of the whole program, RAM, RAM of the whole program) in bytes, from the linker's map.

    Args:
        text: the map.
        name: the object file whose share is wanted.
    """
    body = text[text.index("Linker script and memory map") :]
    flash = {".text", ".data"}  # initial values of .data lie in flash too
    ram = {".data", ".bss"}
    whole, own = {"flash": 0, "ram": 0}, {"flash": 0, "ram": 0}
    section = ""
    # A name too long for its column has its numbers on the next line.
    for line in re.sub(r"^( ?\.\S+)\n +(?=0x)", r"\1 ", body, flags=re.MULTILINE).splitlines():
        output = re.match(r"(\.\w+)\s+0x\w+\s+0x(\w+)", line)
        if output:
            section = output[1]
        if line and not line.startswith(" ") and not output:
            section = ""
        part = re.match(r" \S+\s+0x\w+\s+0x(\w+) (.+)", line)
        for kind, sections in (("flash", flash), ("ram", ram)):
            if section not in sections:
                continue
            if output:
                whole[kind] += int(output[2], 16)
            elif part and Path(part[2]).name == f"{name}.o":
                own[kind] += int(part[1], 16)
    return own["flash"], whole["flash"], own["ram"], whole["ram"]


def fail(text: str) -> None:
    sys.exit(f"mcu: error: {text}")


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimise", default="-Os", help="the compiler's optimisation, such as --optimise=-O2")
    parser.add_argument("--json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()
    absent = missing()
    if absent:
        say(f"mcu: skipped: needs {', '.join(absent)}; on Debian: apt-get install {PACKAGES}")
        return
    with np.load(SAMPLE, allow_pickle=False) as file:
        images = torch.from_numpy(file["images"]).reshape(-1, 1, 28, 28)
    rows = []
    for name, int8 in (("pcapsnet2", False), ("pcapsnet2", True), ("pcapsnet0", True)):
        row = run(name, images[:IMAGES], int8=int8, optimise=arguments.optimise)
        rows.append(row)
        same = "the same integers as in Python" if int8 else "the same classes as in PyTorch"
        say(f"{row.network}: {row.images} test images on a Cortex-M4: {same}")
        say(f"    flash {row.flash:,} bytes, of a program of {row.flash_whole:,}")
        say(f"    RAM {row.ram:,} bytes, of a program of {row.ram_whole:,}; and {row.stack:,} of stack")
        say(f"    {row.instructions:,.0f} instructions an image, at most {row.most_instructions:,.0f}")
    if arguments.json:
        compiler = subprocess.run([GCC, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        machine = subprocess.run([QEMU, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
        about = {"compiler": compiler, "flags": [*CPU, arguments.optimise], "machine": f"{machine}, mps2-an386"}
        write_json(arguments.json, {**about, "rows": [asdict(row) for row in rows]})


if __name__ == "__main__":
    main()
