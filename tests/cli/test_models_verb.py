"""`purecaps models`."""

import re

from typed import purecaps


def test_models_lists_parameters_and_work(capsys):
    assert purecaps("models", "pcapsnet2") == 0
    text = capsys.readouterr().out
    assert re.search(r"pcapsnet2 +3,888 +214,416 +1x28x28", text)
    assert "pcapsnet0" not in text
    assert purecaps("models", "cnn_*") == 0
    text = capsys.readouterr().out
    assert re.search(r"cnn_small +3,888 +180,432 +1x28x28 +-", text)
    assert "decoder" not in text


def test_models_counts_a_decoder_apart(capsys):
    assert purecaps("models", "*capsnet_dr*") == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].split()[:3] == ["model", "parameters", "decoder's"]
    assert re.search(r"capsnet_dr +6,804,384 +1,411,344 +200,871,936", text)
    assert re.search(r"capsnet_dr_nodecoder +6,804,384 +- +200,871,936", text)
