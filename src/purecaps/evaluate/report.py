"""A run on one HTML page that needs nothing but itself."""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import matplotlib
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor, nn

from purecaps.evaluate import page
from purecaps.evaluate.classification import Result
from purecaps.evaluate.filters import filter_weights, filters
from purecaps.evaluate.pictures import (
    ANNOTATED_CLASSES,
    confusion_matrix,
    describe_mistakes,
    picture,
    training_curves,
)
from purecaps.evaluate.style import BLUE, GREEN, INK, VERMILION, styled
from purecaps.files import atomic_write

# Lines and letters take the page's own colours, which differ between light and dark.
PAGE_COLOURS = {INK: "currentColor", BLUE: "var(--blue)", VERMILION: "var(--orange)", GREEN: "var(--green)"}
THUMBNAIL = 96  # pixels; larger images are shrunk, for the page to stay small


def write_report(
    path: str | os.PathLike[str],
    *,
    title: str,
    summary: Mapping[str, str],
    result: Result | None,
    history: Sequence[Mapping[str, float]],
    model: nn.Module,
    worst_images: Tensor | Sequence[Tensor],
    class_names: Sequence[str] | None,
    config: Mapping[str, object],
    versions: Mapping[str, str],
    command: str,
    weights: str = "model.safetensors",
) -> None:
    """Writes the report of a run: one HTML file, without scripts, for light and dark screens.

    Args:
        path: the file to write; it is replaced in one go.
        title: the page's heading.
        summary: headline numbers besides test error, parameters and steps, such as {"Time": "231 s"};
            one of those three names replaces the number shown.
        result: of the test set; None leaves out what is made of it.
        history: a row for each step logged, as `training_curves` takes them; none leaves out the curves.
        model: to count and to show its filters, if it has `.blocks` of capsule convolutions.
        worst_images: uint8 [k, C, H, W], those at `result.most_confused(k)`, in that order.
        class_names: a name for each class; their indexes if None.
        config: nested mappings of plain values.
        versions: of the programs that made the run.
        command: the command line that made the run.
        weights: the file of trained weights, as named from where the report is.
    """
    sections = [_headline(summary, result, history, model)]
    plots = []
    if history:
        plots.append(_section("Training", _curves(history, result)))
    if result is not None:
        plots.append(_section("Confusion", _confusion(result, class_names)))
        if result.num_classes <= ANNOTATED_CLASSES:
            plots = [f'<div class="pair">{"".join(plots)}</div>']
    sections += plots
    if result is not None:
        if len(worst_images):
            sections.append(_section("Worst mistakes", _worst(worst_images, result, class_names)))
        sections.append(_section("Classes", _classes(result, class_names)))
    if kernels := filter_weights(model):
        sections.append(_section("Filters", _filters(kernels)))
    sections.append(_section("Network", _network(model)))
    pairs = [
        _section(name, _pairs(table))
        for name, table in (("Configuration", dict(_flat(config))), ("Versions", versions))
        if table
    ]
    sections.append(f'<div class="pair">{"".join(pairs)}</div>')
    sections.append(_section("Made by", f"<pre>{escape(command)}</pre>"))
    sections.append(_section("Load the weights", f"<pre>{escape(_load_code(weights))}</pre>"))
    html = page.PAGE.substitute(title=escape(title), style=page.STYLE.strip(), body="\n".join(sections))
    with atomic_write(path) as temporary:
        # File names may hold bytes that are no text; they must not cost the user the report.
        temporary.write_bytes(html.encode("utf-8", "replace"))


def inline_svg(figure: Figure, name: str, alt: str) -> str:
    """A figure as SVG to stand in a page: its text in the page's font, its ink in the page's text colour.

    Args:
        figure: what to draw.
        name: tells its definitions from those of the page's other figures.
        alt: what it shows, for those who do not see it.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with styled(), matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    opening, drawing = svg[svg.index("<svg") :].split(">", 1)
    view = re.search(r'viewBox="[^"]*"', opening)
    assert view is not None
    drawing = re.sub(r'<g id="[^"]*"', "<g", drawing)  # matplotlib numbers groups anew in every figure
    drawing = drawing.replace("xlink:href=", "href=")
    for colour, in_page in PAGE_COLOURS.items():
        drawing = re.sub(rf"(fill|stroke): {colour}", rf"\1: {in_page}", drawing)
    drawing = re.sub(r"\n\s*", "\n", drawing)
    size = f"max-width: {1.75 * 72 * figure.get_figwidth():.0f}px"  # beyond it, letters would be too large
    return f'<svg class="{name}" {view[0]} style="{size}" role="img" aria-label="{escape(alt)}">{drawing}'


def _section(title: str, body: str) -> str:
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>"


def _headline(
    summary: Mapping[str, str],
    result: Result | None,
    history: Sequence[Mapping[str, float]],
    model: nn.Module,
) -> str:
    numbers: dict[str, str] = {}
    if result is not None:
        low, high = result.interval()
        numbers["Test error"] = (
            f"{result.error_rate:.2f} %<small>{result.errors:,} of {len(result):,} images</small>"
            f"<small>95 % interval {low:.2f} to {high:.2f} %</small>"
        )
    numbers["Parameters"] = f"{sum(p.numel() for p in model.parameters()):,}"
    if history:
        numbers["Steps"] = f"{max(int(row['step']) for row in history):,}"
    numbers |= {escape(key): escape(value) for key, value in summary.items()}
    cards = (f"<div><dt>{key}</dt><dd>{value}</dd></div>" for key, value in numbers.items())
    return f'<dl class="cards">{"".join(cards)}</dl>'


def _curves(history: Sequence[Mapping[str, float]], result: Result | None) -> str:
    test_error = None if result is None else result.error_rate
    last = {key: value for row in history for key, value in row.items() if value is not None}
    ends = [
        f"{name} {last[key]:.3g}{unit}"
        for key, name, unit in (
            ("error", "training error", " %"),
            ("val_error", "validation error", " %"),
            ("loss", "training loss", ""),
        )
        if key in last
    ]
    steps = f"{int(last['step']):,} steps"
    if len({row["step"] for row in history}) == 1:
        note = f"After {steps}: {', '.join(ends)}. Only they were logged; a lower --log-every makes a curve."
        return f'<p class="note">{note}</p>'
    alt = f"Training curves over {steps}. At the end: {', '.join(ends)}."
    caption = "Training error and loss are means over the batches as augmented; validation images are held out."
    if test_error is not None:
        caption += " The dashed line is the test error at the end."
    return _figure(inline_svg(training_curves(history, test_error=test_error), "curves", alt), caption)


def _confusion(result: Result, class_names: Sequence[str] | None) -> str:
    names = result.names(class_names)
    mistakes = result.confusion.clone().fill_diagonal_(0)
    alt = f"Confusion matrix of {len(names)} classes, {result.errors:,} mistakes."
    if result.errors:
        true, predicted = divmod(int(mistakes.argmax()), len(names))
        alt += f" The most frequent: {names[true]} taken for {names[predicted]}, {int(mistakes.max()):,} times."
    caption = (
        "A row for each true class, a column for each prediction. Blue is right; orange is wrong, "
        "the stronger the more often (by the root of the count)."
    )
    annotated = len(names) <= ANNOTATED_CLASSES
    svg = inline_svg(confusion_matrix(result, class_names), "counts" if annotated else "map", alt)
    least = 0 if len(names) <= 10 else 36 if annotated else 58
    return _figure(_scroll(svg, "Confusion matrix", least=least), caption)


def _worst(images: Tensor | Sequence[Tensor], result: Result, class_names: Sequence[str] | None) -> str:
    items = []
    for image, mistake in zip(images, describe_mistakes(len(images), result, class_names), strict=True):
        alt = escape(f"An image of {mistake.true}, taken for {mistake.predicted}")
        items.append(
            f'<li><img src="{_png(image)}" alt="{alt}">{escape(mistake.classes)}<small>{mistake.scores}</small></li>'
        )
    note = "True → predicted class, and the scores of both; the widest gap first."
    return f'<ul class="grid">{"".join(items)}</ul><p class="note">{note}</p>'


def _classes(result: Result, class_names: Sequence[str] | None) -> str:
    rows = result.per_class(class_names)
    top = max((row.error_rate or 0.0 for row in rows), default=0.0) or 1.0
    body = "".join(
        f'<tr><th scope="row">{escape(row.name)}</th>'
        f'<td class="n">{row.n:,}</td>'
        f'<td class="n">{row.errors:,}</td>'
        f'<td class="n bar" style="--part:{100 * (row.error_rate or 0.0) / top:.0f}%">'
        f"{'–' if row.error_rate is None else f'{row.error_rate:.2f}'}</td>"
        f"<td>{escape(row.most_confused_with or '–')}</td></tr>"
        for row in rows
    )
    table = (
        '<table class="numbers"><thead><tr><th scope="col">class</th><th scope="col" class="n">images</th>'
        '<th scope="col" class="n">errors</th><th scope="col" class="n">error, %</th>'
        f'<th scope="col">most often taken for</th></tr></thead><tbody>{body}</tbody></table>'
    )
    body = _scroll(table, "Errors by class")
    if len(rows) > ANNOTATED_CLASSES:
        body = f"<details><summary>All {len(rows)} classes</summary>{body}</details>"
    return body


def _filters(kernels: Sequence[Tensor]) -> str:
    alt = f"The weights of {len(kernels)} capsule layers, a panel each: orange above zero, blue below."
    caption = (
        "Each layer's kernel kh×kw×C×O×(g×n×p) as a matrix with a row for each of its kh·kw positions: "
        "orange above zero, blue below."
    )
    return _figure(_scroll(inline_svg(filters(kernels), "filters", alt), "Filters", least=36), caption)


def _network(model: nn.Module) -> str:
    return f"<details><summary>Layer by layer</summary><pre>{escape(str(model))}</pre></details>"


def _figure(body: str, caption: str) -> str:
    return f"<figure>{body}<figcaption>{escape(caption)}</figcaption></figure>"


def _scroll(body: str, name: str, *, least: int = 0) -> str:
    """Room that scrolls sideways where the screen is narrower than `least` rem, from the keyboard as well."""
    attributes = f'style="--least: {least}rem" tabindex="0" role="region" aria-label="{name}"'
    return f'<div class="scroll" {attributes}>{body}</div>'


def _pairs(table: Mapping[str, object]) -> str:
    rows = (
        f'<tr><th scope="row">{escape(str(key))}</th><td>{escape(_plain(value))}</td></tr>'
        for key, value in table.items()
    )
    return f'<div class="scroll"><table class="pairs"><tbody>{"".join(rows)}</tbody></table></div>'


def _load_code(weights: str) -> str:
    return (
        "from purecaps.evaluate.trained import TrainedModel\n\n"
        f"trained = TrainedModel.from_file({json.dumps(weights, ensure_ascii=False)})\n"
        "scores = trained.scores(images)  # uint8 [N, C, H, W] -> class scores [N, K]"
    )


def _plain(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _flat(config: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _png(image: Tensor) -> str:
    drawn = Image.fromarray(picture(image))
    drawn.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    drawn.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
