"""What a run says of where it was made."""

import re

from purecaps.experiments.run import commit


def test_the_commit_is_the_repositorys_unless_the_environment_states_it(monkeypatch):
    monkeypatch.delenv("PURECAPS_COMMIT", raising=False)
    assert re.fullmatch(r"[0-9a-f]{12}|unknown", commit())
    monkeypatch.setenv("PURECAPS_COMMIT", "0123456789ab")
    assert commit() == "0123456789ab"
