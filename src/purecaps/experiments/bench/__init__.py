"""How fast is it? Ways to run a network side by side, behind a parity check and above a measured floor."""

from purecaps.experiments.bench.contenders import CONTENDERS, Contender, Way, offered
from purecaps.experiments.bench.growth import AXES, Growth, grow
from purecaps.experiments.bench.record import Row, append_csv
from purecaps.experiments.bench.run import Report, Settings, bench
from purecaps.experiments.bench.tasks import MODES
from purecaps.experiments.bench.turns import Turns

__all__ = [
    "AXES",
    "CONTENDERS",
    "MODES",
    "Contender",
    "Growth",
    "Report",
    "Row",
    "Settings",
    "Turns",
    "Way",
    "append_csv",
    "bench",
    "grow",
    "offered",
]
