"""`make mcu`: its reading of linker maps and its comparison, and the whole of it where the tools are there."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from purecaps.evaluate.trained import TrainedModel
from purecaps.export.c import export_c
from purecaps.export.c_int8 import export_c_int8
from purecaps.quant import QuantisedPCapsNet

SCRIPT = Path(__file__).parent.parent.parent / "tools" / "mcu" / "run.py"

MAP = """Archive member included to satisfy reference by file (symbol)

Linker script and memory map

LOAD /tmp/net.o

.text           0x00000000      0x300
 *(.vectors)
 .vectors       0x00000000       0x40 /tmp/startup.o
 .text.short    0x00000040       0x10 /tmp/net.o
                0x00000041                net_lengths
 .text.a_name_too_long_for_its_column
                0x00000050       0x20 /tmp/net.o
 .rodata.weights
                0x00000070      0x100 /tmp/net.o
 .text.expm1f   0x00000170       0x80 /usr/lib/libm.a(net.o)

.images         0x00000300     0x1000
 .images        0x00000300     0x1000 /tmp/main.o

.data           0x20000000        0x8 load address 0x00001300
 .data.table    0x20000000        0x8 /tmp/net.o

.bss            0x20000008       0x30
 .bss.arena     0x20000008       0x24 /tmp/net.o
 .bss.line      0x2000002c        0xc /tmp/main.o

.stack          0x20000038     0x4000

.debug_info     0x00000000      0x999
 .debug_info    0x00000000      0x999 /tmp/net.o
"""


@pytest.fixture(scope="module")
def mcu():
    spec = importlib.util.spec_from_file_location("mcu_run", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mcu_run"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_map_is_summed_by_memory_without_images_stack_and_debugging(mcu):
    flash, flash_whole, ram, ram_whole = mcu.parse_map(MAP, "net")
    assert flash == 0x10 + 0x20 + 0x100 + 0x8
    assert flash_whole == 0x300 + 0x8
    assert ram == 0x8 + 0x24
    assert ram_whole == 0x8 + 0x30


def test_what_the_board_writes_is_read_back(mcu):
    lines = ["class 00000007 ticks 00000010 3f000000 bf800000", "stack 0000014c"]
    classes, ticks, scores, stack = mcu.parse_output(lines, int8=False)
    assert (classes.tolist(), ticks, scores.tolist(), stack) == ([7], [16], [[0.5, -1.0]], 332)
    assert mcu.parse_output(lines, int8=True)[2].tolist() == [[0x3F000000, -0x40800000]]
    with pytest.raises(SystemExit, match="mcu: error: expected lines of classes and of the stack, got: fault"):
        mcu.parse_output(["fault"], int8=True)


def test_a_difference_stops_it(mcu):
    expected = torch.tensor([[1, 5, 2], [9, 3, 4]], dtype=torch.int32)
    classes = torch.tensor([1, 0])
    mcu.require_same("net", classes, expected, expected, int8=True)
    with pytest.raises(SystemExit, match="got 1 images with others and 0 other classes"):
        mcu.require_same("net", classes, expected + torch.tensor([[0, 0, 0], [1, 0, 0]]), expected, int8=True)
    with pytest.raises(SystemExit, match="got 0 images with others and 1 other classes"):
        mcu.require_same("net", torch.tensor([1, 2]), expected, expected, int8=True)
    with pytest.raises(SystemExit, match="expected 2 images, got 1"):
        mcu.require_same("net", classes[:1], expected[:1], expected, int8=True)
    lengths = expected / 10.0
    mcu.require_same("net", classes, lengths + 1e-6, lengths, int8=False)
    with pytest.raises(SystemExit, match=r"got 0 other classes, difference 1e-05"):
        mcu.require_same("net", classes, lengths + 1e-5, lengths, int8=False)
    with pytest.raises(SystemExit, match="difference nan"):
        mcu.require_same("net", classes, lengths * float("nan"), lengths, int8=False)


def test_missing_tools_are_named_and_nothing_else_is_done(mcu, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py"])
    monkeypatch.setattr(mcu.shutil, "which", lambda name: None)
    mcu.main()
    said = capsys.readouterr().out
    assert said.startswith("mcu: skipped: needs arm-none-eabi-gcc, qemu-system-arm; on Debian: apt-get install gcc-arm")
    assert said.count("\n") == 1


@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
def test_a_network_runs_on_the_emulated_board(mcu, int8, digits, tmp_path):
    if absent := mcu.missing():
        pytest.skip(f"needs {', '.join(absent)}")
    row = mcu.run("pcapsnet1", digits.test.images[:3], int8=int8, optimise="-Os")
    assert row.images == 3
    if int8:
        report = export_c_int8(QuantisedPCapsNet.from_package("pcapsnet1"), tmp_path)
    else:
        report = export_c(TrainedModel.from_package("pcapsnet1"), tmp_path)
    assert row.ram == report.ram_bytes
    assert row.flash > report.constant_bytes
    assert row.flash < (5500 if int8 else 14_000)
    assert row.flash <= row.flash_whole
    assert 100 < row.stack < 1000
    assert 166_896 < row.instructions < 20 * 166_896  # multiply-adds an image
