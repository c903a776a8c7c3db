"""The measurement itself: every case, every way to run it, in turns."""

from __future__ import annotations

import datetime
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch

from purecaps.errors import ConfigError, unknown_name
from purecaps.experiments.bench.case import Case, inference_precision
from purecaps.experiments.bench.contenders import Contender, Way
from purecaps.experiments.bench.floors import Floor, Rates, floor, measured_rates
from purecaps.experiments.bench.memory import free, within_memory
from purecaps.experiments.bench.outcome import Measured, Unmeasured, attempt
from purecaps.experiments.bench.record import Row
from purecaps.experiments.bench.runner import Runner, Timed
from purecaps.experiments.bench.subjects import Subject
from purecaps.experiments.bench.tasks import MODES
from purecaps.experiments.bench.turns import Turns
from purecaps.malloc import keep_freed_memory
from purecaps.provenance import versions
from purecaps.train.arithmetic import arithmetic
from purecaps.train.recipe import PRECISIONS


@dataclass(frozen=True)
class Settings:
    """How to measure.

    Args:
        device: where to run, "cpu" or "cuda".
        precision: of float images, "fp32", "tf32" (on CUDA alone) or "bf16".
        rounds: how often each way is timed.
        budget: seconds after which nothing new is compiled.
        say: told what is measured.
        turns: with other processes that measure on the same device.
    """

    device: torch.device
    precision: str = "fp32"
    rounds: int = 10
    budget: float = math.inf
    say: Callable[[str], None] = lambda text: None
    turns: Turns = field(default_factory=Turns)

    def __post_init__(self) -> None:
        kind = self.device.type
        if kind not in ("cpu", "cuda"):
            raise ConfigError(f"device: expected cpu or cuda, got {kind}")
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", self.precision, PRECISIONS)
        if self.precision == "tf32" and kind != "cuda":
            raise ConfigError(f"precision: expected fp32 or bf16 on {kind}, got tf32")
        if self.rounds < 1:
            raise ConfigError(f"rounds: expected an int >= 1, got {self.rounds}")
        if not self.budget >= 0:
            raise ConfigError(f"budget: expected seconds >= 0, got {self.budget:g}")


@dataclass
class Report:
    """What a benchmark found.

    Args:
        rows: one for every way and case, measured or not.
        rates: what the machine reached in each precision.
        failures: contenders that computed something else, or broke. Running out of memory is no failure.
    """

    rows: list[Row] = field(default_factory=list)
    rates: dict[str, Rates] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def bench(
    subjects: Sequence[Subject],
    batches: Mapping[str, Sequence[int]],
    ways: Sequence[Way],
    settings: Settings,
    record: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Times every way on every network, mode and batch size.

    Args:
        subjects: the networks.
        batches: for each mode, batch sizes.
        ways: what to set side by side; those that do not have a mode are left out there.
        settings: how to measure.
        record: told what has been found after each case, so that a run that is stopped has left something.
    """
    check_request(batches, ways)
    session = Session(settings)
    for subject in subjects:
        for mode, sizes in batches.items():
            for batch in sizes:
                session.measure(subject, mode, batch, ways)
                record(session.report)
    return session.report


def check_request(batches: Mapping[str, Sequence[int]], ways: Sequence[Way]) -> None:
    """Refuses what cannot be measured, before anything is."""
    for mode, sizes in batches.items():
        if mode not in MODES:
            raise unknown_name("mode", mode, MODES)
        if not sizes or min(sizes) < 1:
            raise ConfigError(f"batches: expected numbers >= 1, got {list(sizes)}")
        if not any(mode in way.contender.modes for way in ways):
            given = ", ".join(way.name for way in ways) or "none"
            raise ConfigError(f"contenders: expected at least one for {mode}, got {given}")


class Session:
    """Measures cases one after the other, and keeps what they share: the report, the rates, the time that is left.

    Args:
        settings: how to measure.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.report = settings, Report()
        if settings.device.type == "cpu":
            keep_freed_memory()  # as `purecaps train` does; it serves all contenders
        self._about = versions(settings.device)
        self._end = time.monotonic() + settings.budget

    def measure(self, subject: Subject, mode: str, batch: int, ways: Sequence[Way]) -> list[Row]:
        """Rows for every way that has the mode, in their order; they are in the report, too."""
        device, precision = self.settings.device, self.settings.precision
        ways = [way for way in ways if mode in way.contender.modes]
        rates = self._rates(inference_precision(device) if mode == "inference" else precision)
        # Else the second batch size would be compiled for all sizes, and the ninth not at all.
        torch._dynamo.reset()
        with arithmetic(precision, device), within_memory(device):
            with self.settings.turns.getting_ready():
                case = Case(subject, mode, batch, device, precision)
            self.settings.say(str(case))
            found = self._found(case, ways)
        least = floor(case.specification, mode, batch, case.precision, rates)
        rows = [self._row(case, way, found[way], least) for way in ways]
        del case
        free(device)
        self.report.rows += rows
        return rows

    def _rates(self, precision: str) -> Rates:
        known = self.report.rates
        if precision not in known:
            device, turns = self.settings.device, self.settings.turns
            # Whoever comes first measures what any other will ask for, while none has begun to get ready. Later, the
            # second precision would have to wait until all that have begun are ready.
            others = () if turns.path is None else (self.settings.precision, inference_precision(device))
            found = {
                each: turns.once(f"rates-{each}", Rates, partial(measured_rates, device, each))
                for each in dict.fromkeys((*others, precision))
            }
            known[precision] = found[precision]
            self.settings.say(f"{precision}: {known[precision]}")
            free(self.settings.device)
        return known[precision]

    def _found(self, case: Case, ways: Sequence[Way]) -> dict[Way, Measured | Unmeasured]:
        found: dict[Way, Measured | Unmeasured] = {}
        contenders = list(dict.fromkeys(way.contender for way in ways))
        # On a CPU other programs disturb, so all take turns, and where benchmarks wait for each other all of a case get
        # ready before any is timed. Else each has a GPU's memory to itself.
        together = case.device.type == "cpu" or self.settings.turns.path is not None
        for group in [contenders] if together else [[contender] for contender in contenders]:
            with self.settings.turns.getting_ready():
                runners = {contender: self._runner(contender, case) for contender in group}
            of_group = [way for way in ways if way.contender in group]
            for asked in [of_group] if together else [[way] for way in of_group]:
                found |= self._in_turns({way: runners[way.contender] for way in asked})
                free(case.device)
            del runners
            free(case.device)
        return found

    def _runner(self, contender: Contender, case: Case) -> Runner | Unmeasured:
        if contender.compiled and time.monotonic() > self._end:
            return Unmeasured(f"left out, the budget of {self.settings.budget:g} s is spent")
        return attempt(Runner, contender, case)

    def _in_turns(self, runners: Mapping[Way, Runner | Unmeasured]) -> dict[Way, Measured | Unmeasured]:
        """Rounds go through all ways, so that a disturbance meets them all."""
        with self.settings.turns.getting_ready():
            timed = {
                way: runner if isinstance(runner, Unmeasured) else attempt(Timed, runner, way)
                for way, runner in runners.items()
            }
        with self.settings.turns.timing():
            for _ in range(self.settings.rounds):
                for way, each in timed.items():
                    if isinstance(each, Timed):
                        problem = attempt(each.once_more)
                        if problem is not None:
                            timed[way] = problem
        return {way: each.measured() if isinstance(each, Timed) else each for way, each in timed.items()}

    def _row(self, case: Case, way: Way, found: Measured | Unmeasured, least: Floor) -> Row:
        measured = found if isinstance(found, Measured) else None
        if isinstance(found, Unmeasured):
            self.settings.say(f"  {way.name}: {found.reason}")
            if found.failed:
                self.report.failures.append(f"{case}, {way.name}: {found.reason}")
        fastest = min(measured.times) if measured else None
        return Row(
            date=datetime.date.today().isoformat(),
            hardware=self._about["hardware"],
            torch=self._about["torch"],
            python=self._about["python"],
            commit=self._about["commit"],
            mode=case.mode,
            model=case.subject.name,
            batch=case.batch,
            contender=way.name,
            n=len(measured.times) if measured else 0,
            min_ms=fastest,
            median_ms=statistics.median(measured.times) if measured else None,
            spread_ms=max(measured.times) - min(measured.times) if measured else None,
            images_per_s=case.batch / fastest * 1e3 if fastest else None,
            peak_mib=measured.peak_mib if measured else None,
            # Another network has another floor.
            times_floor=fastest / least.ms if fastest and way.contender.exact else None,
            precision=case.precision,
            floor_ms=least.ms,
            floor_by=least.by,
            kept_mib=measured.kept_mib if measured else None,
            note=found.note if isinstance(found, Measured) else found.reason,
        )
