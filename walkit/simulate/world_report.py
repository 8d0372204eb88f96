"""Many schedules of a world, one after the other, and of a failing one the shortest that is found to fail."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from walkit._internal.arguments import check_number, check_whole
from walkit._internal.report import Cells, TableReport
from walkit.simulate.world import Outcome, run_schedule
from walkit.simulate.world_counts import COVERAGE, required_in
from walkit.simulate.world_faults import CHAOS_MS, Schedule
from walkit.simulate.world_rules import RULES

SHRINK_RUNS_MAX = 120
"""So many schedules are run at most to find a shorter one."""
FAILURES_MAX = 3
"""After so many failing schedules no more are run."""
SEED_MAX = 1 << 63


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A schedule that broke a rule, and the shortest one with the same seed that was found to break the same rule."""

    found: Outcome
    shortest: Outcome
    runs: int
    """How many schedules were run to find it."""


@dataclass(frozen=True, kw_only=True)
class WorldReport(TableReport):
    """The result of the schedules: how much was run, and each failure with the command that reproduces it."""

    title = "Seeded world"

    seed: int
    schedules: int
    """How many were run; fewer than asked for after `FAILURES_MAX` failures."""
    virtual_s: float
    real_s: float
    events: int
    records: int
    counts: Mapping[str, int]
    """How often each thing of `world_counts.COVERAGE` happened, in the order of that; 0 for what never did."""
    digest: int
    """A CRC-32 over the digests of all schedules."""
    failures: tuple[Failure, ...] = ()
    missed: tuple[str, ...] = ()
    """Events that never happened, and must in this many schedules."""

    @property
    def failed(self) -> bool:
        """Whether any schedule broke a rule, or something never happened."""
        return bool(self.failures or self.missed)

    def _head(self) -> Cells:
        return ("what", "how much")

    def _cells(self) -> list[Cells]:
        last = self.seed + self.schedules - 1
        return [
            ("schedules", f"{self.schedules:,} (seeds {self.seed} to {last})"),
            ("virtual seconds", f"{self.virtual_s:,.1f}"),
            ("virtual seconds per second", f"{self.virtual_s / max(self.real_s, 1e-9):,.0f}"),
            ("events, each with every rule checked after it", f"{self.events:,}"),
            ("records", f"{self.records:,}"),
            ("digest", f"{self.digest:08x}"),
            ("failing schedules", f"{len(self.failures):,}"),
            *((name, f"{times:,}") for name, times in self.counts.items()),
        ]

    def _facts(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "failures"}
        return {
            **facts,
            "missed": list(self.missed),
            "failures": [_plain(failure) for failure in self.failures],
        }

    def _row_titles(self) -> list[str]:
        return [COVERAGE.get(name, "") for name, _ in self._cells()]

    def _lines_below(self) -> list[str]:
        never = [f"never happened: {'; '.join(self.missed)}"] if self.missed else []
        return [*never, *(line for failure in self.failures for line in failure_lines(failure))]


def failure_lines(failure: Failure) -> list[str]:
    """Return a failure in words: the rule, what was seen, the faults that are left, and the command that repeats it."""
    shortest = failure.shortest
    faults, of = shortest.schedule.faults(), len(failure.found.schedule.faults())
    return [
        "",
        f"seed {shortest.schedule.seed} at {shortest.at_ms:,.0f} ms breaks {shortest.rule!r}: {RULES[shortest.rule]}",
        f"  {shortest.text}",
        f"  the shortest schedule found in {failure.runs} runs has {len(faults)} of {of} faults:",
        *(f"    {fault}" for fault in faults),
        f"  again: {shortest.schedule.command}",
    ]


def _plain(failure: Failure) -> dict[str, Any]:
    shortest = failure.shortest
    return {
        "seed": shortest.schedule.seed,
        "rule": shortest.rule,
        "text": shortest.text,
        "at_ms": shortest.at_ms,
        "faults": [str(fault) for fault in shortest.schedule.faults()],
        "command": shortest.schedule.command,
    }


def explore(
    seed: int = 0,
    schedules: int = 1,
    *,
    keep: tuple[int, ...] | None = None,
    chaos_ms: float = CHAOS_MS,
    on_progress: Callable[[int], object] | None = None,
) -> WorldReport:
    """Run the schedules of so many seeds from `seed` on, and shrink those that break a rule.

    With `keep` only those faults happen, and only in the first `chaos_ms` milliseconds, as the command of a failure
    says. `on_progress` is called with how many are done. The same arguments give the same report, but for `real_s`.
    OptionsError for a number that cannot be.
    """
    check_whole(seed, "seed", 0, SEED_MAX - 1)
    check_whole(schedules, "schedules")
    check_number(chaos_ms, "chaos_ms", 0, CHAOS_MS, above=True)
    wanted = required_in(schedules) if keep is None and chaos_ms == CHAOS_MS else ()
    began_s = time.perf_counter()
    counts = dict.fromkeys(COVERAGE, 0)
    virtual_ms, digest, done, events, records = 0.0, 0, 0, 0, 0
    failures: list[Failure] = []
    for number in range(seed, seed + schedules):
        outcome = run_schedule(Schedule(seed=number, keep=keep, chaos_ms=chaos_ms))
        for name, times in outcome.counts.items():
            counts[name] = counts.get(name, 0) + times
        events, records = events + outcome.events, records + outcome.records
        virtual_ms += outcome.at_ms
        digest = (digest * 31 + outcome.digest) % (1 << 32)
        done += 1
        if outcome.failed:
            failures.append(shrink(outcome))
        if on_progress is not None:
            on_progress(done)
        if len(failures) == FAILURES_MAX:
            break
    return WorldReport(
        seed=seed,
        schedules=done,
        virtual_s=virtual_ms / 1000,
        real_s=time.perf_counter() - began_s,
        digest=digest,
        failures=tuple(failures),
        events=events,
        records=records,
        counts=counts,
        missed=tuple(name for name in wanted if not failures and not counts[name]),
    )


def shrink(found: Outcome, runs_max: int = SHRINK_RUNS_MAX) -> Failure:
    """Return a failure with as few faults, and as short a time, as are found to break the same rule.

    Faults are left out in halves, quarters and so on down to single ones, until none can be left out; then the time
    in which there are faults and appends is cut.
    """
    search = _Search(found, runs_max)
    size = max(len(search.numbers) // 2, 1)
    while search.numbers and search.runs < runs_max:
        left = search.leave_out(size)
        if not left and size == 1:
            break
        size = size if left else size // 2
        size = min(size, max(len(search.numbers), 1))
    search.cut_time()
    return Failure(found=found, shortest=search.best, runs=search.runs)


class _Search:
    """The shortest failing schedule so far."""

    def __init__(self, found: Outcome, runs_max: int) -> None:
        self.best, self.runs, self._runs_max = found, 0, runs_max
        self.numbers = tuple(fault.number for fault in found.schedule.faults())

    def leave_out(self, size: int) -> bool:
        """Try without each run of so many faults; return whether any could be left out."""
        left, start = False, 0
        while start < len(self.numbers) and self.runs < self._runs_max:
            fewer = self.numbers[:start] + self.numbers[start + size :]
            if self._fails(replace(self.best.schedule, keep=fewer)):
                self.numbers, left = fewer, True
            else:
                start += size
        return left

    def cut_time(self) -> None:
        """Try ends of the time of faults, from early to late; the first that fails is the shortest."""
        whole_ms = self.best.schedule.chaos_ms
        for tenth in range(1, 10):
            if self.runs < self._runs_max and self._fails(
                replace(self.best.schedule, chaos_ms=round(whole_ms * tenth / 10, 1))
            ):
                return

    def _fails(self, schedule: Schedule) -> bool:
        self.runs += 1
        outcome = run_schedule(schedule)
        if outcome.rule != self.best.rule:
            return False
        self.best = outcome
        return True
