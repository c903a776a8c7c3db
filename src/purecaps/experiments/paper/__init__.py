"""The paper, reproduced: one file an entry, that is a table or figure, and the report that sets paper beside ours."""

from __future__ import annotations

from purecaps.errors import unknown_name
from purecaps.experiments.paper import (
    ablation_coefficients,
    ablation_init,
    ablation_packing,
    ablation_plain,
    ablation_squash,
    correlation,
    filters,
    generalisation,
    ladder,
    table1,
    table2,
    table3,
    table4,
    table5,
    whitebox,
    zoo,
)
from purecaps.experiments.paper.entry import Entry

__all__ = ["ENTRIES", "get_entries"]

# In the order in which the report has them.
ENTRIES: dict[str, Entry] = {
    module.ENTRY.name: module.ENTRY
    for module in (
        table1,
        table2,
        table3,
        ladder,
        table4,
        whitebox,
        filters,
        correlation,
        generalisation,
        table5,
        zoo,
        ablation_plain,
        ablation_coefficients,
        ablation_packing,
        ablation_init,
        ablation_squash,
    )
}


def get_entries(names: list[str]) -> list[Entry]:
    """The entries of these names, in the report's order; "all" stands for every one."""
    for name in names:
        if name != "all" and name not in ENTRIES:
            raise unknown_name("entry", name, [*ENTRIES, "all"])
    return [entry for name, entry in ENTRIES.items() if name in names or "all" in names]
