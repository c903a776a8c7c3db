from __future__ import annotations

import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from purecaps import files
from purecaps.evaluate import Result, write_report
from purecaps.evaluate.pictures import training_curves
from purecaps.evaluate.report import inline_svg

VOID = {"meta", "img", "br", "link", "input", "hr"}
NASTY = """<script>alert("x")</script> & 'q' \\1 </svg> --> ${title}"""


class Page(HTMLParser):
    """Everything the tests ask of a page; fails on tags that do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.attributes if name == tag]


class Block(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.conv = nn.Module()
        self.conv.weight = nn.Parameter(torch.randn(shape))


class Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(3, 3, 1, 1, 1, 1, 16), Block(3, 3, 1, 5, 1, 4, 3)])


@pytest.fixture
def result() -> Result:
    generator = torch.Generator().manual_seed(5)
    scores = torch.rand(123, 5, generator=generator)
    labels = torch.randint(5, (123,), generator=generator)
    return Result(scores, labels)


def images_of(k: int, channels: int = 1, side: int = 28) -> Tensor:
    return torch.randint(256, (k, channels, side, side), dtype=torch.uint8)


def report(path: Path, **changes: Any) -> str:
    arguments: dict[str, Any] = {
        "title": "pcapsnet2 on digits",
        "summary": {"Time": "231 s"},
        "result": None,
        "history": [{"step": 10 * i, "loss": 1.0 / i, "error": 50.0 / i, "lr": 0.01} for i in range(1, 64)],
        "model": Capsules(),
        "worst_images": [],
        "class_names": None,
        "config": {"seed": 0, "train": {"lr": 0.01, "augment": ["shift", "affine"]}},
        "versions": {"torch": "2.13.0"},
        "command": "purecaps train --model pcapsnet2",
    }
    write_report(path, **(arguments | changes))
    return path.read_text(encoding="utf-8")


def test_a_full_report_shows_every_part(tmp_path: Path, result: Result) -> None:
    text = report(tmp_path / "r.html", result=result, worst_images=images_of(7), weights="best.safetensors")
    page = Page(text)
    words = " ".join(page.words)
    low, high = result.interval()
    for expected in (
        f"{result.error_rate:.2f} %",
        f"{result.errors} of 123 images",
        f"95 % interval {low:.2f} to {high:.2f} %",
        f"{9 * 16 + 9 * 60:,}",  # parameters
        "630",  # steps
        "231 s",
        "train.augment",
        "shift, affine",
        "2.13.0",
        "purecaps train --model pcapsnet2",
        'TrainedModel.from_file("best.safetensors")',
        "3×3×1×5×(1×4×3)",
    ):
        assert expected in words
    headings = [part for part in page.words if part in {"Training", "Confusion", "Worst mistakes", "Filters"}]
    assert headings == ["Training", "Confusion", "Worst mistakes", "Filters"]


def test_nothing_is_loaded_from_elsewhere_and_no_script_runs(tmp_path: Path, result: Result) -> None:
    text = report(tmp_path / "r.html", result=result, worst_images=images_of(3))
    assert "http://" not in text
    assert "https://" not in text
    page = Page(text)
    assert not {"script", "link", "iframe", "object", "base"} & set(page.tags)
    for tag, attributes in page.attributes:
        assert not any(name.startswith("on") for name in attributes), tag
        for name in ("src", "href", "srcset", "data"):
            target = attributes.get(name)
            assert target is None or target.startswith(("data:image/png;base64,", "#")), (tag, target)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", text))
    assert "default-src 'none'" in text


def test_whatever_users_name_is_escaped(tmp_path: Path, result: Result) -> None:
    plain = Page(report(tmp_path / "plain.html", result=result, worst_images=images_of(3)))
    page = Page(
        report(
            tmp_path / "nasty.html",
            title=NASTY,
            summary={NASTY: NASTY},
            result=result,
            worst_images=images_of(3),
            class_names=[NASTY, '" onload="x', "<b>", "&amp;", "\udcff"],
            config={NASTY: {NASTY: NASTY}},
            versions={NASTY: NASTY},
            command=NASTY,
            weights=NASTY,
        )
    )
    assert "script" not in page.tags
    assert page.tags["b"] == 0
    assert page.tags["svg"] == plain.tags["svg"] == 3
    assert not any("onload" in attributes for _, attributes in page.attributes)
    assert page.words.count(NASTY) >= 6


def test_every_picture_has_an_alternative_text(tmp_path: Path, result: Result) -> None:
    page = Page(report(tmp_path / "r.html", result=result, worst_images=images_of(4)))
    assert page.tags["img"] == 4
    assert all(image["alt"] for image in page.all_of("img"))
    drawings = page.all_of("svg")
    assert len(drawings) == 3
    assert all(drawing["role"] == "img" and drawing["aria-label"] for drawing in drawings)
    assert page.tags["h1"] == 1
    assert page.all_of("html") == [{"lang": "en"}]


def test_ids_are_unique_and_every_reference_has_its_target(tmp_path: Path, result: Result) -> None:
    text = report(tmp_path / "r.html", result=result, worst_images=images_of(2))
    ids = Counter(attributes["id"] for _, attributes in Page(text).attributes if "id" in attributes)
    assert [name for name, count in ids.items() if count > 1] == []
    assert set(re.findall(r"(?:url\(|href=\")#(\w+)", text)) <= set(ids)


def test_figures_of_different_names_share_no_ids_even_if_they_look_alike() -> None:
    figure = training_curves([{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
    first, second = (set(re.findall(r' id="(\w+)"', inline_svg(figure, name, "x"))) for name in ("a", "b"))
    assert first
    assert not first & second


def test_pictures_take_the_pages_colours_for_light_and_dark(tmp_path: Path, result: Result) -> None:
    text = report(tmp_path / "r.html", result=result)
    assert "prefers-color-scheme: dark" in text
    drawings = "".join(re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL))
    assert "currentColor" in drawings
    assert "#1f2328" not in drawings
    assert "#ffffff" not in drawings.replace("fill: #ffffff", "")  # white figures on strong colours


def test_a_model_without_blocks_has_no_filters(tmp_path: Path) -> None:
    text = report(tmp_path / "r.html", model=nn.Linear(3, 2))
    assert "<h2>Filters</h2>" not in text
    assert "<dd>8</dd>" in text  # its parameters


def test_a_single_row_of_metrics_is_told_in_words_not_drawn_as_a_dot(tmp_path: Path) -> None:
    row = {"step": 100, "loss": 0.25, "error": 3.5, "lr": 0.01}
    text = report(tmp_path / "r.html", history=[row, row | {"val_error": 4.5}])
    told = "After 100 steps: training error 3.5 %, validation error 4.5 %, training loss 0.25."
    assert told in text
    assert '<svg class="curves"' not in text
    assert '<svg class="curves"' in report(tmp_path / "r.html", history=[row, row | {"step": 101}])


def test_without_test_results_and_history_the_rest_is_still_told(tmp_path: Path) -> None:
    text = report(tmp_path / "r.html", result=None, history=[], config={}, versions={})
    page = Page(text)
    assert page.tags["svg"] == 1  # the filters
    for missing in ("Test error", "Confusion", "Worst mistakes", "Training", "Configuration"):
        assert f"<h2>{missing}</h2>" not in text
        assert f"<dt>{missing}</dt>" not in text


def test_the_summary_can_replace_a_headline_number(tmp_path: Path) -> None:
    text = report(tmp_path / "r.html", summary={"Steps": "630 of 1,000"})
    assert text.count("<dt>Steps</dt>") == 1
    assert "630 of 1,000" in text


def test_many_classes_and_large_colour_images_stay_small(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(1000) % 100
    result = Result(torch.rand(1000, 100, generator=generator), labels)
    names = [f"class {i}" for i in range(100)]
    path = tmp_path / "r.html"
    Page(report(path, result=result, class_names=names, worst_images=images_of(6, 3, 224)))
    assert path.stat().st_size < 600_000


def test_a_failed_write_leaves_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.html"
    report(path)
    before = path.read_bytes()

    def full_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        report(path, title="another")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path, result: Result) -> None:
    model, images = Capsules(), images_of(3)
    first = report(tmp_path / "1.html", model=model, result=result, worst_images=images)
    assert report(tmp_path / "2.html", model=model, result=result, worst_images=images) == first
