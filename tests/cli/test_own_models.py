"""`--import`: networks of one's own on the command line."""

import json
import re
import sys

import pytest
from typed import QUICK, purecaps

from purecaps.models import registry

MY_MODELS = """
from purecaps import Layer, PCapsNet
from purecaps.models import register_model

@register_model(in_shape=(1, 28, 28))
def my_capsnet(*, in_shape, num_classes, **options):
    layers = [Layer(1, None, 16, stride=4), Layer(None, 4, 8, stride=4)]
    return PCapsNet(layers, in_shape=in_shape, num_classes=num_classes, **options)
"""


def test_a_network_of_ones_own_is_trained_and_used_once_its_module_is_imported(here, digits_file, capsys, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    (here / "my_models.py").write_text(MY_MODELS)
    words = ["train", "--model", "my_capsnet", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK]
    assert purecaps(*words) == 1
    told = capsys.readouterr().err
    assert "unknown model 'my_capsnet'" in told
    assert told.endswith("; one of your own is known after --import MODULE, before the verb\n")
    assert purecaps("--import", "my_models", *words) == 0
    assert purecaps("--import", "my_models", "eval", "--checkpoint", "run", "--device", "cpu") == 0


def test_the_command_that_goes_on_with_a_network_of_ones_own_imports_it(here, digits_file, capsys, monkeypatch):
    def interrupt(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    monkeypatch.setattr("purecaps.experiments.run.evaluate", interrupt)
    (here / "my_models.py").write_text(MY_MODELS)
    words = ["train", "--model", "my_capsnet", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK]
    assert purecaps("--import", "my_models", *words) == 130
    told = capsys.readouterr().err
    assert told.endswith("; go on with: purecaps --import my_models train --out run --resume\n")


OTHERS = """
import torch
from torch import nn
from purecaps.models import register_model
from purecaps.nn import CapsBlock, LengthHead

class Ordinary(nn.Module):
    def __init__(self, in_shape, num_classes, more=0):
        super().__init__()
        self.in_shape, self.num_classes = in_shape, num_classes
        self.layers = nn.Sequential(CapsBlock(1, num_classes + more, (1, 1, 4), 28), LengthHead())

    def forward(self, images):
        return self.layers(images.permute(0, 2, 3, 1)[:, None, :, :, None, None, :])

class Empty(Ordinary):
    def parameters(self, recurse=True):
        return iter(())

@register_model(in_shape=(1, 28, 28))
def ordinary(*, in_shape, num_classes):
    return Ordinary(in_shape, num_classes)

@register_model(in_shape=(1, 28, 28))
def one_too_many(*, in_shape, num_classes):
    return Ordinary(in_shape, num_classes, more=1)

@register_model(in_shape=(1, 28, 28))
def empty(*, in_shape, num_classes):
    return Empty(in_shape, num_classes)
"""


@pytest.fixture
def others(here, monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", dict(registry._ENTRIES))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "others", raising=False)
    (here / "others.py").write_text(OTHERS)


def test_a_network_that_has_no_option_for_initial_weights_keeps_its_own(others, here, digits_file, capsys):
    words = ["train", "--model", "ordinary", "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK]
    assert purecaps("--import", "others", *words) == 0
    assert "ordinary has no option init: its weights begin as it makes them" in capsys.readouterr().err
    assert json.loads((here / "run" / "config.json").read_text())["recipe"]["init"] is None
    assert purecaps("--import", "others", *words, "--out", "run2", "--init", "msra") == 1
    assert "let its builder take init, or the recipe leave it out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("one_too_many", "model: expected scores [1, 10] for one image from Ordinary, got [1, 11]"),
        ("empty", "model: expected a network with parameters to train, got Empty, which has none"),
    ],
)
def test_a_network_that_cannot_be_trained_is_refused_before_the_first_step(others, digits_file, capsys, model, message):
    words = ["train", "--model", model, "--data", digits_file, "--out", "run", "--device", "cpu", *QUICK]
    assert purecaps("--import", "others", *words) == 1
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("no_such_models", r"--import: expected a module .* got 'no_such_models': No module named 'no_such_models'"),
        ("../mine", r"--import: expected a module's name, such as my_models, got '../mine'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_in_one_line(capsys, monkeypatch, module, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert purecaps("--import", module, "models") == 1
    told = capsys.readouterr().err
    assert re.search(message, told)
    assert len(told.splitlines()) == 1
