"""`purecaps predict`."""

import re

import pytest
from PIL import Image
from typed import purecaps


def test_predict_prints_the_longest_capsule_first_and_inverts_on_request(here, digits, capsys):
    Image.fromarray(255 - digits.test.images[0, 0].numpy()).save("ink.png")
    assert purecaps("predict", "ink.png", "--invert") == 0
    rows = re.findall(r"^(\d) +(0\.\d{4})", capsys.readouterr().out, re.MULTILINE)
    assert rows[0][0] == str(int(digits.test.labels[0]))
    lengths = [float(length) for _, length in rows]
    assert lengths == sorted(lengths, reverse=True)


def pages(digits):
    """Twelve digits, dark on white pages of 400 x 300 pixels, each elsewhere; gives their paths."""
    for index, image in enumerate(digits.test.images[:12, 0].numpy()):
        digit = Image.fromarray(255 - image).resize((140, 140), Image.Resampling.BICUBIC)
        page = Image.new("L", (400, 300), 255)
        page.paste(digit, (20 * index, 13 * index))
        page.save(f"page {index}.png")
        yield f"page {index}.png"


def test_predict_fits_digits_on_paper_and_says_where_it_only_stretches(here, digits, capsys):
    paths = list(pages(digits))
    labels = [str(label) for label in digits.test.labels[:12].tolist()]

    def right():
        found = re.findall(r"^class .*\n(\d) ", capsys.readouterr().out, re.MULTILINE)
        assert len(found) == 12
        return sum(each == label for each, label in zip(found, labels, strict=True))

    assert purecaps("predict", *paths, "--model", "pcapsnet2", "--fit") == 0
    assert right() >= 11
    assert purecaps("predict", *paths, "--model", "pcapsnet2", "--invert") == 0
    assert right() < 6
    assert purecaps("predict", paths[0], "--model", "pcapsnet2", "--invert") == 0
    said = capsys.readouterr().err
    assert said == "page 0.png: stretched from 400x300 pixels to 28x28; --fit would find a digit in it and keep its proportions\n"  # fmt: skip


def test_predict_says_nothing_of_images_that_are_nearly_square(here, capsys):
    Image.new("L", (35, 28), 255).save("digit.png")
    assert purecaps("predict", "digit.png", "--model", "pcapsnet2") == 0
    assert capsys.readouterr().err == ""


def test_predict_does_not_advise_what_it_would_refuse(here, capsys):
    Image.new("RGB", (60, 32)).save("wide.png")
    assert purecaps("predict", "wide.png", "--model", "pcapsnet4") == 0
    assert capsys.readouterr().err == "wide.png: stretched from 60x32 pixels to 32x32\n"


def test_predict_does_not_advise_to_fit_a_network_of_other_images_than_mnists(trained, capsys):
    Image.new("L", (60, 28)).save("wide.png")
    capsys.readouterr()
    assert purecaps("predict", "wide.png", "--checkpoint", trained) == 0
    assert capsys.readouterr().err == "wide.png: stretched from 60x28 pixels to 28x28\n"


@pytest.mark.parametrize("more", [[], ["--fit"]], ids=["stretched", "fitted"])
def test_a_file_that_is_no_image_is_told_and_the_others_are_read(here, digits, capsys, more):
    for index in range(2):
        Image.fromarray(digits.test.images[index, 0].numpy()).save(f"{index}.png")
    (here / "bad.png").write_text("no image")
    (here / "folder").mkdir()
    assert purecaps("predict", "0.png", "bad.png", "folder", "1.png", "--model", "pcapsnet2", *more) == 1
    said = capsys.readouterr()
    assert re.findall(r"^.*\.png", said.out, re.MULTILINE) == ["0.png", "1.png"]
    bad, folder, last = said.err.splitlines()
    assert bad.startswith("bad.png: ")
    assert folder.startswith("folder: ")
    assert last == "purecaps: error: 2 of 4 images could not be read"
