"""Networks as C: compiled with every warning an error, and run against PyTorch."""

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
import torch

from purecaps import data
from purecaps.errors import ConfigError
from purecaps.evaluate.trained import TrainedModel
from purecaps.export.c import export_c
from purecaps.export.c_int8 import export_c_int8
from purecaps.models import Layer, ModelInfo, PCapsNet, create_model
from purecaps.quant import QuantisedPCapsNet

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

STRICT = ["-std=c99", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-Wconversion", "-Wshadow"]
SANITISED = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g"]
MAIN = """
#include "NAME.h"
#include <stdio.h>
static uint8_t image[PREFIX_CHANNELS * PREFIX_HEIGHT * PREFIX_WIDTH];
static float lengths[PREFIX_CLASSES];
int main(void)
{
    while (fread(image, 1U, sizeof image, stdin) == sizeof image) {
        const float found = (float)NAME_classify(image);
        NAME_lengths(image, lengths);
        (void)fwrite(&found, sizeof found, 1U, stdout);
        (void)fwrite(lengths, sizeof lengths[0], PREFIX_CLASSES, stdout);
    }
    (void)fputs(NAME_class_name(1), stderr);
    (void)fputs(NAME_class_name(-1), stderr);
    (void)fputs(NAME_class_name(PREFIX_CLASSES), stderr);
    return 0;
}
"""


def run(trained, images, folder, *flags):
    """(classes, lengths, what class 1 is called) as the compiled program finds them."""
    report = export_c(trained, folder)
    name = report.source.stem
    (folder / "main.c").write_text(MAIN.replace("NAME", name).replace("PREFIX", name.upper()))
    program = folder / "program"
    subprocess.run(["gcc", *STRICT, *flags, "-o", program, folder / "main.c", report.source, "-lm"], check=True)
    done = subprocess.run([program], input=images.numpy().tobytes(), capture_output=True, check=True)
    found = torch.from_numpy(np.frombuffer(done.stdout, np.float32).copy()).view(len(images), -1)
    return found[:, 0].long(), found[:, 1:], done.stderr.decode()


def assert_like_pytorch(trained, images, folder, *flags):
    classes, lengths, _ = run(trained, images, folder, *flags)
    expected = trained.scores(images)
    torch.testing.assert_close(lengths, expected, rtol=0, atol=5e-6)
    assert torch.equal(classes, expected.argmax(dim=1))


@pytest.mark.parametrize("name", ["pcapsnet1", "pcapsnet2", "pcapsnet3"])
def test_pretrained_networks_read_digits_as_in_pytorch(name, digits, tmp_path):
    assert_like_pytorch(TrainedModel.from_package(name), digits.test.images, tmp_path)


def test_no_undefined_behaviour_and_no_stray_access(digits, tmp_path):
    assert_like_pytorch(TrainedModel.from_package("pcapsnet2"), digits.test.images[:8], tmp_path, *SANITISED)


def own(layers, in_shape, classes=3, *, image_shape=None, augment=(), **options):
    torch.manual_seed(0)
    model = PCapsNet(layers, in_shape=in_shape, num_classes=classes, **options).eval()
    names = tuple(f"class {number}" for number in range(classes))
    return TrainedModel(
        model, ModelInfo("my-net", in_shape, image_shape or in_shape, classes, {}, names, augment=augment)
    )


@pytest.mark.parametrize(
    "trained",
    [
        own([Layer(2, None, 6, g=1), Layer(3, 3, 2, g=2, padding=1), Layer(None, 2, 3, g=2)], (2, 9, 7)),
        own(
            [Layer(2, None, 8, stride=2), Layer(None, 4, 4, kernel=5, padding=2)],
            (1, 9, 11),
            squash_chunk=4,
            pool="max",
        ),
        own([Layer(1, None, 4), Layer(None, 2, 5)], (3, 8, 6), mean=(0.1, 0.2, 0.3), std=(0.5, 0.6, 0.7)),
        own([Layer(1, None, 4), Layer(None, 2, 5)], (1, 8, 8), image_shape=(1, 13, 11), augment=("crop:8", "flip")),
    ],
    ids=["groups and padding", "chunks, strides and the longest of several", "standardised colours", "a crop"],
)
def test_any_p_capsnet_gives_the_lengths_of_pytorch(trained, tmp_path):
    images = torch.randint(
        0, 256, (6, *trained.info.image_shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    images[0] = 0
    assert_like_pytorch(trained, images, tmp_path, *SANITISED)


def test_class_names_survive_whatever_is_in_them(tmp_path):
    trained = own([Layer(None, None, 2)], (1, 4, 4), 2)
    odd = 'a "b" \\ ??/ é'
    info = ModelInfo("my-net", (1, 4, 4), (1, 4, 4), 2, {}, ("x", odd))
    assert run(TrainedModel(trained.model, info), torch.zeros(1, 1, 4, 4, dtype=torch.uint8), tmp_path)[2] == odd


TWO = """
#include "digits.h"
#include "Letters_2.h"
#include <stdio.h>
int main(void)
{
    static uint8_t image[DIGITS_CHANNELS * DIGITS_HEIGHT * DIGITS_WIDTH];
    static float lengths[DIGITS_CLASSES + LETTERS_2_CLASSES];
    while (fread(image, 1U, sizeof image, stdin) == sizeof image) {
        digits_lengths(image, lengths);
        Letters_2_lengths(image, &lengths[DIGITS_CLASSES]);
        (void)fwrite(lengths, sizeof lengths, 1U, stdout);
    }
    return 0;
}
"""


def test_two_networks_of_one_architecture_go_into_one_program(tmp_path):
    networks = [own([Layer(2, None, 6), Layer(None, 3, 4, kernel=3)], (1, 7, 7)) for _ in range(2)]
    torch.nn.init.normal_(networks[1].model.capsule_blocks()[0].conv.weight)
    names = ("digits", "Letters_2")
    sources = [export_c(each, tmp_path, name=name).source.name for each, name in zip(networks, names, strict=True)]
    (tmp_path / "main.c").write_text(TWO)
    command = ["gcc", *STRICT, *SANITISED, "-I", ".", "-o", "program", "main.c", *sources, "-lm"]
    subprocess.run(command, check=True, cwd=tmp_path)
    images = torch.randint(256, (3, 1, 7, 7), dtype=torch.uint8)
    done = subprocess.run([tmp_path / "program"], input=images.numpy().tobytes(), capture_output=True, check=True)
    found = torch.from_numpy(np.frombuffer(done.stdout, np.float32).copy()).view(3, -1)
    expected = torch.cat([each.scores(images) for each in networks], dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", ["", "2digits", "my-net", "a/b", "größe", "a b", "a\n", "math", "StdInt"])
def test_a_name_that_is_none_in_c_is_refused(name, tmp_path):
    with pytest.raises(ConfigError, match=rf"name: expected letters, .* got {re.escape(repr(name))}"):
        export_c(own([Layer(None, None, 2)], (1, 4, 4), 2), tmp_path, name=name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("folder", ["Ziffern-für-mich", "手写", "two\nlines", "a * b"])
def test_the_name_of_the_data_survives_in_a_comment(tmp_path, folder):
    trained = own([Layer(None, None, 2)], (1, 4, 4), 2)
    trained = TrainedModel(trained.model, replace(trained.info, trained_on=f"/data/{folder}"))
    assert_like_pytorch(trained, torch.zeros(1, 1, 4, 4, dtype=torch.uint8), tmp_path)


def test_the_report_counts_weights_memory_and_work(tmp_path):
    report = export_c(TrainedModel.from_package("pcapsnet2"), tmp_path)
    assert report.constant_bytes == 4 * 3888
    # Layer 2 reads 13x13x16 numbers and writes 11x11x32. Before its last capsule all but one of them lie there, and
    # beside them the three rows of three positions that it still reads, with what is between. Then a capsule and lengths.
    assert report.ram_bytes == 4 * ((11 * 11 - 1) * 32 + (2 * 13 + 3) * 16 + 32 + 10)
    assert report.multiply_adds == 214_416


@pytest.mark.parametrize(
    ("trained", "message"),
    [
        (
            TrainedModel(torch.nn.Linear(1, 1), ModelInfo("lenet", (1, 28, 28), (1, 28, 28), 10)),
            "expected a P-CapsNet, got lenet; export it to ONNX",
        ),
        (
            TrainedModel(
                create_model("pcapsnet4"), ModelInfo("pcapsnet4", (3, 24, 24), (3, 32, 32), 10, preprocess="gcn_zca")
            ),
            "got one of whitened images",
        ),
        (
            TrainedModel(
                create_model("pcapsnet1"),
                ModelInfo("pcapsnet1", (1, 28, 28), (1, 28, 28), 10, augment=("standardise",)),
            ),
            "got one trained with standardise; export it to ONNX",
        ),
    ],
)
def test_what_c_cannot_take_is_refused(trained, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        export_c(trained, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.net
@pytest.mark.slow
def test_all_test_images_are_classified_as_in_pytorch(tmp_path):
    trained, images = TrainedModel.from_package("pcapsnet2"), data.load("mnist").test.images
    classes, _, _ = run(trained, images, tmp_path, "-O2")
    expected = torch.cat([trained.scores(part) for part in images.split(1000)]).argmax(dim=1)
    assert torch.equal(classes, expected)


@pytest.mark.parametrize("int8", [False, True], ids=["float", "int8"])
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_program_in_cpp_links_it(int8, digits, tmp_path):
    trained = TrainedModel.from_package("pcapsnet1")
    report = (
        export_c_int8(QuantisedPCapsNet.from_package("pcapsnet1"), tmp_path) if int8 else export_c(trained, tmp_path)
    )
    name = report.source.stem
    (tmp_path / "main.cpp").write_text(
        f'#include "{name}.h"\n#include <cstdio>\n'
        "static uint8_t image[28 * 28];\n"
        f"int main() {{ return std::fread(image, 1, sizeof image, stdin) ? {name}_classify(image) : -1; }}\n"
    )
    subprocess.run(["gcc", *STRICT, "-c", "-o", tmp_path / "net.o", report.source], check=True)
    program = tmp_path / "program"
    subprocess.run(["g++", "-Wall", "-o", program, tmp_path / "main.cpp", tmp_path / "net.o", "-lm"], check=True)
    image = digits.test.images[:1]
    done = subprocess.run([program], input=image.numpy().tobytes(), check=False)
    assert done.returncode == trained.scores(image).argmax()
