"""Networks out: as files that other programs run."""
