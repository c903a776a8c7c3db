"""`--import`: networks of one's own on the command line."""

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
