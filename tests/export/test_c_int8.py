"""Quantised networks as C: compiled with every warning an error, and the same integers as in Python, bit for bit."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from purecaps import data
from purecaps.errors import ConfigError
from purecaps.export.c_int8 import export_c_int8
from purecaps.models import Layer
from purecaps.quant import QuantisedPCapsNet, quantise
from purecaps.quant.layer import QuantisedLayer
from quantised_cases import CASES, own, raw_images

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

STRICT = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow"]
SANITISED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
MAIN = """
#include "NAME.h"
#include <stdio.h>
static uint8_t image[PREFIX_CHANNELS * PREFIX_HEIGHT * PREFIX_WIDTH];
static int32_t scores[PREFIX_CLASSES];
int main(void)
{
    while (fread(image, 1U, sizeof image, stdin) == sizeof image) {
        const int32_t found = NAME_classify(image);
        NAME_scores(image, scores);
        (void)fwrite(&found, sizeof found, 1U, stdout);
        (void)fwrite(scores, sizeof scores[0], PREFIX_CLASSES, stdout);
    }
    (void)fputs(NAME_class_name(1), stderr);
    (void)fputs(NAME_class_name(-1), stderr);
    (void)fputs(NAME_class_name(PREFIX_CLASSES), stderr);
    return 0;
}
"""


def run(network, images, folder, *flags):
    """(classes, scores, what class 1 is called) as the compiled program finds them."""
    report = export_c_int8(network, folder)
    name = report.source.stem
    (folder / "main.c").write_text(MAIN.replace("NAME", name).replace("PREFIX", name.upper()))
    program = folder / "program"
    subprocess.run(["gcc", *STRICT, *flags, "-o", program, folder / "main.c", report.source], check=True)
    done = subprocess.run([program], input=images.numpy().tobytes(), capture_output=True, check=True)
    found = torch.from_numpy(np.frombuffer(done.stdout, np.int32).copy()).view(len(images), -1)
    return found[:, 0].long(), found[:, 1:], done.stderr.decode()


def assert_the_same_integers(network, images, folder, *flags):
    classes, scores, _ = run(network, images, folder, *flags)
    expected = torch.cat([network.scores(part) for part in images.split(100)])
    assert torch.equal(scores, expected)
    assert torch.equal(classes, expected.argmax(dim=1))


@pytest.mark.parametrize("name", ["pcapsnet1", "pcapsnet2", "pcapsnet3"])
def test_packaged_networks_give_the_integers_of_python(name, digits, tmp_path):
    images = torch.cat([digits.train.images, digits.test.images])
    assert_the_same_integers(QuantisedPCapsNet.from_package(name), images, tmp_path, "-O2")


def test_no_undefined_behaviour_and_no_stray_access(digits, tmp_path):
    images = torch.cat([digits.test.images[:8], torch.full((1, 1, 28, 28), 255, dtype=torch.uint8)])
    assert_the_same_integers(QuantisedPCapsNet.from_package("pcapsnet2"), images, tmp_path, *SANITISED)


@pytest.mark.parametrize("trained", CASES.values(), ids=CASES)
def test_any_p_capsnet_gives_the_integers_of_python(trained, tmp_path):
    images = raw_images(trained)
    assert_the_same_integers(quantise(trained, images), images, tmp_path, *SANITISED)


def loud(factor: float):
    """A network whose capsules are so long, or so short, that they lie outside the table of squash."""
    trained = own([Layer(2, None, 6), Layer(2, 3, 4), Layer(None, 4, 4, kernel=3)], (1, 7, 7))
    torch.nn.init.normal_(trained.model.capsule_blocks()[0].conv.weight, std=factor)
    return trained


@pytest.mark.parametrize("factor", [1e-3, 5.0, 60.0])
def test_capsules_outside_the_table_are_squashed_alike(factor, tmp_path):
    trained = loud(factor)
    images = raw_images(trained, 20)
    assert_the_same_integers(quantise(trained, images), images, tmp_path, *SANITISED)


def test_scores_beyond_the_calibration_saturate_alike(tmp_path):
    trained = loud(5.0)
    images = raw_images(trained, 20)
    network = quantise(trained, images)
    last = network.capsule_layers()[-1]
    louder = replace(last.scaling, shift=last.scaling.shift - 4)
    network.layers[-1] = QuantisedLayer(last.sizes, louder, last.weight, last.multiplier, last.in_zero)
    assert int(network.scores(images).max()) == 2**31 - 1
    assert_the_same_integers(network, images, tmp_path, *SANITISED)


def test_nothing_but_integers_and_no_library(tmp_path):
    report = export_c_int8(QuantisedPCapsNet.from_package("pcapsnet2"), tmp_path)
    text = re.sub(r"/\*.*?\*/", "", report.source.read_text() + report.header.read_text(), flags=re.DOTALL)
    assert not re.search(r"\b(float|double|malloc|memcpy|memset)\b", text)
    assert sorted(set(re.findall(r"#include (\S+)", text))) == ['"pcapsnet2_int8.h"', "<stddef.h>", "<stdint.h>"]


def test_class_names_survive_whatever_is_in_them(tmp_path):
    trained = CASES["one layer"]
    odd = 'a "b" \\ ??/ é'
    network = quantise(trained, raw_images(trained))
    network.info = replace(network.info, class_names=("x", odd))
    assert run(network, torch.zeros(1, 1, 4, 4, dtype=torch.uint8), tmp_path)[2] == odd


def test_the_report_counts_constants_memory_and_work(tmp_path):
    report = export_c_int8(QuantisedPCapsNet.from_package("pcapsnet2"), tmp_path)
    assert (report.source.name, report.header.name) == ("pcapsnet2_int8.c", "pcapsnet2_int8.h")
    assert report.constant_bytes == 3888 + 2 * 76 + 2 * 145
    # As of the network in float, in bytes; then a capsule of 32-bit sums and the scores.
    assert report.ram_bytes == (11 * 11 - 1) * 32 + (2 * 13 + 3) * 16 + 4 * (32 + 10)
    assert report.multiply_adds == 214_416


def test_a_name_of_ones_own_is_that_of_files_and_symbols(tmp_path):
    network = QuantisedPCapsNet.from_package("pcapsnet1")
    report = export_c_int8(network, tmp_path, name="digits")
    assert (report.source.name, report.header.name) == ("digits.c", "digits.h")
    subprocess.run(["gcc", *STRICT, "-c", "-o", tmp_path / "n.o", report.source], check=True)
    symbols = subprocess.run(["nm", "-g", tmp_path / "n.o"], capture_output=True, text=True, check=True).stdout
    assert sorted(re.findall(r" T (\w+)", symbols)) == ["digits_class_name", "digits_classify", "digits_scores"]
    with pytest.raises(ConfigError, match=r"name: expected letters, .* got 'my-net'"):
        export_c_int8(network, tmp_path, name="my-net")


def test_the_report_is_what_the_compiler_lays_out(tmp_path):
    report = export_c_int8(QuantisedPCapsNet.from_package("pcapsnet2"), tmp_path)
    subprocess.run(["gcc", *STRICT, "-Os", "-c", "-o", tmp_path / "n.o", report.source], check=True)
    sections = subprocess.run(["size", "-A", tmp_path / "n.o"], capture_output=True, text=True, check=True).stdout
    sizes = {name: int(size) for name, size in re.findall(r"^(\.\w+)\s+(\d+)", sections, re.MULTILINE)}
    padding = 64
    assert report.ram_bytes <= sizes[".bss"] <= report.ram_bytes + padding
    assert sizes[".rodata"] >= report.constant_bytes
    assert sizes[".data"] == 0


def test_a_map_of_too_many_positions_is_refused(tmp_path):
    trained = CASES["the mean of several"]
    network = quantise(trained, raw_images(trained))
    last = network.capsule_layers()[-1]
    network.layers[-1] = QuantisedLayer(
        replace(last.sizes, out_size=(300, 300)), last.scaling, last.weight, last.multiplier, last.in_zero
    )
    with pytest.raises(ConfigError, match=r"up to 65,535 positions, got 300x300; export it to C in float"):
        export_c_int8(network, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.net
@pytest.mark.slow
def test_all_test_images_give_the_integers_of_python(tmp_path):
    images = data.load("mnist").test.images
    assert_the_same_integers(QuantisedPCapsNet.from_package("pcapsnet2"), images, tmp_path, "-O2")
