"""The command line as a user types it, in this process."""

import pytest

from purecaps import cli

# Of `purecaps train`: a run of seconds.
QUICK = ["--steps", "6", "--batch-size", "16", "--val-size", "20", "--log-every", "2", "--checkpoint-every", "2"]


def purecaps(*words: object) -> int:
    """Returns the exit code."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(word) for word in words])
    return int(stop.value.code or 0)
