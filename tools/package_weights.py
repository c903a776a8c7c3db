"""Puts the network of a finished run into the package, with a model card beside it.

    python tools/package_weights.py runs/pcapsnet2 [--commit REV]

The weights go to src/purecaps/models/weights/NAME.safetensors, the card to NAME.md. Other runs of the same network that
are named after the first (other seeds) only add to the card's mean and spread.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from pathlib import Path

from purecaps.files import atomic_write
from purecaps.models import ModelInfo, load_model, save_model

WEIGHTS = Path(__file__).parent.parent / "src" / "purecaps" / "models" / "weights"

CARD = """# {name}, trained on {data}

| | |
|---|---|
| parameters | {parameters:,} |
| input | {shape} images in [0, 1]{crop} |
| classes | {classes} |
| test error of these weights | {error:.2f} % ({errors} of {images:,}; 95 % interval {low:.2f} to {high:.2f} %) |
| seed of these weights | {seed} |
| all seeds | {seeds} |
| recipe | {recipe} |
| training | {steps:,} steps, {seconds:.0f} s |
| hardware | {hardware} |
| versions | purecaps {purecaps} ({commit}), torch {torch}, Python {python} |

Made by:

    {command}

The weights are the final iterate. The test set was read once, after training; nothing of this run was chosen by it, the
seed included: the first is packaged, whatever the others reached.

```python
import purecaps

model = purecaps.create_model("{name}", pretrained=True)
scores = model(images)  # [B, {channels}, {height}, {width}] -> capsule lengths [B, {num_classes}]
```
"""


def write_card(info: ModelInfo, errors: list[float], path: Path) -> None:
    record, (channels, height, width) = info.record, info.in_shape
    low, high = record["test_error_interval"]
    seeds = "this one only"
    if len(errors) > 1:
        seeds = f"{statistics.mean(errors):.2f} +- {statistics.stdev(errors):.2f} % (n = {len(errors)})"
    crop = "" if info.in_shape == info.image_shape else f", the centre of {'x'.join(map(str, info.image_shape))}"
    text = CARD.format(
        name=info.name,
        data=info.trained_on,
        parameters=record["parameters"],
        shape="x".join(map(str, info.in_shape)),
        crop=crop,
        classes=", ".join(info.class_names),
        error=record["test_error"],
        errors=record["test_errors"],
        images=record["test_images"],
        low=low,
        high=high,
        seed=record["seed"],
        seeds=seeds,
        recipe=record["recipe"],
        steps=record["steps"],
        seconds=record["train_seconds"],
        command=record["command"],
        channels=channels,
        height=height,
        width=width,
        num_classes=info.num_classes,
        **record["versions"],
    )
    with atomic_write(path) as temporary:
        temporary.write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of the run whose weights are packaged")
    parser.add_argument("others", type=Path, nargs="*", help="runs of the same network with other seeds")
    parser.add_argument("--commit", help="the commit of the run, where the run itself could not know it")
    arguments = parser.parse_args()
    model, info = load_model(arguments.run / "model.safetensors")
    errors = [info.record["test_error"]]
    for other in arguments.others:
        record = load_model(other / "model.safetensors")[1].record
        if (record["model"], record["recipe"]) != (info.record["model"], info.record["recipe"]):
            parser.error(f"{other}: expected a {info.name} by recipe {info.record['recipe']}, got {record['model']}")
        errors.append(record["test_error"])
    if arguments.commit:
        info = dataclasses.replace(
            info,
            record={**info.record, "versions": {**info.record["versions"], "commit": arguments.commit}},
        )
    save_model(model, WEIGHTS / f"{info.name}.safetensors", info)
    write_card(info, errors, WEIGHTS / f"{info.name}.md")


if __name__ == "__main__":
    main()
