"""The result of an exploration: the number of crash states, of judged ones, and each broken rule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from walkit._internal.html import Markup, tag
from walkit._internal.report import Cells, TableReport
from walkit._internal.text import counted
from walkit.crashlab.promises import Promise
from walkit.models import CrashingStorage

SHOWN_LINES = 12
"""So many changes of a violation are listed; the rest is counted."""


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A state that a power cut may leave, and the rule that it breaks."""

    rule: str
    """One of `walkit.crashlab.RULES`."""
    text: str
    """The violation in words."""
    scenario: str
    profile: str
    seed: int
    mutant: str
    """The mutant of walkit that it was found in; "" for walkit as it is."""
    point: int
    operation: str
    """The operations under way, or about to start, at the power cut."""
    state: int
    """Which state of the point: see `walkit.crashlab.replay`."""
    lost: tuple[str, ...]
    """The lost changes; all others arrived. It is minimal: with any of them kept, the rule holds."""
    promise: Promise = field(repr=False)
    image: CrashingStorage = field(repr=False)
    """The storage as the power cut left it."""

    @property
    def reproducer(self) -> str:
        """Python code that makes this state again and judges it."""
        which = f'"{self.scenario}", point={self.point}, state={self.state}'
        call = f'walkit.crashlab.replay({which}, profile="{self.profile}", seed={self.seed})'
        if not self.mutant:
            return f"import walkit.crashlab\n{call}"
        return (
            "import walkit.crashlab\n"
            f'with walkit.crashlab.museum.MUTANTS["{self.mutant}"].applied():\n    print({call})'
        )

    def save(self, folder: str | Path) -> Path:
        """Write the files as the power cut left them into a new folder, for `walkit inspect` and a debugger.

        FileExistsError if it is there already; OSError.
        """
        root = Path(folder)
        root.mkdir(parents=True)
        self._save(root, "")
        return root

    def _save(self, root: Path, below: str) -> None:
        for name in self.image.names(below):
            if name.endswith("/"):
                (root / name).mkdir()
                self._save(root, name.rstrip("/"))
                continue
            file = self.image.open(name, "read")
            (root / name).write_bytes(file.read(0, file.size()))
            file.close()

    def lines(self) -> list[str]:
        """Return it as lines of text."""
        shown = self.lost[:SHOWN_LINES]
        more = len(self.lost) - len(shown)
        return [
            f"{self.rule}: {self.text}",
            f"  power cut at point {self.point}: {self.operation}",
            *(f"  {line}" for line in shown),
            *([f"  and {counted(more, 'change')} more"] if more else []),
        ]

    def __str__(self) -> str:
        return "\n".join([*self.lines(), *(f"  | {line}" for line in self.reproducer.splitlines())])

    def _repr_html_(self) -> str:
        lines = [tag("div", line.strip()) for line in self.lines()[1:]]
        return tag("div", tag("b", self.lines()[0]), *lines, tag("pre", self.reproducer))


@dataclass(frozen=True, kw_only=True, slots=True)
class PointResult:
    """How far the states of one point were looked at."""

    number: int
    operation: str
    possible: int
    """How many states a power cut may leave there."""
    explored: int
    violations: int
    during: tuple[str, ...] = ()
    """Names of `COVERAGE`: all that was under way."""

    @property
    def is_whole(self) -> bool:
        """Whether every state was looked at."""
        return self.explored == self.possible


@dataclass(frozen=True, kw_only=True)
class Exploration(TableReport):
    """The result of one exploration."""

    title = "Crash states"

    scenario: str
    about: str
    """The events of the scenario."""
    profile: str
    seed: int
    budget: int
    durability: str
    covers: tuple[str, ...] = ()
    """Names of `COVERAGE`: at least one state has to be cut during each."""
    mutant: str
    points: tuple[PointResult, ...] = field(repr=False)
    distinct: int
    """The number of distinct ones, by the bytes of files or the promises."""
    violations: tuple[Violation, ...] = field(repr=False)
    """The first ones, each made as small as it can be."""
    broken: int
    """How many states broke a rule."""
    rules: Mapping[str, int] = field(default_factory=dict)
    """How many states broke each rule: the first one that the judge meets."""
    duration_s: float
    interrupted: bool = False
    """Whether it ended early (Ctrl-C): then the points after that have no explored state."""

    @property
    def ok(self) -> bool:
        """Whether the run came to its end, covered all that it is for, and no state that was judged breaks a rule."""
        return not self.violations and (self.interrupted or not self.missed)

    @property
    def covered(self) -> dict[str, int]:
        """The number of judged states that were cut during each thing, by its name in `COVERAGE`."""
        counts = dict.fromkeys(self.covers, 0)
        for point in self.points:
            for name in point.during:
                counts[name] = counts.get(name, 0) + point.explored
        return counts

    @property
    def missed(self) -> tuple[str, ...]:
        """Names of `covers` during which no state was cut."""
        covered = self.covered
        return tuple(name for name in self.covers if not covered[name])

    @property
    def failed(self) -> bool:
        """Whether walkit raised an unexpected error in the scenario: rule "runs"."""
        return any(violation.rule == "runs" for violation in self.violations)

    @property
    def states(self) -> int:
        """How many states were judged; those with the same bytes and promise once, for all of them."""
        return sum(point.explored for point in self.points)

    @property
    def possible(self) -> int:
        """How many states there are."""
        return sum(point.possible for point in self.points)

    @property
    def whole_points(self) -> int:
        """Points of which every state was looked at."""
        return sum(point.is_whole for point in self.points)

    @property
    def coverage(self) -> float:
        """Which part of a point's states was looked at, on average over the points: 1.0 is all there is."""
        return sum(p.explored / p.possible for p in self.points) / len(self.points) if self.points else 0.0

    @property
    def reproducer(self) -> str:
        """Python code that makes the first violation again; "" without one."""
        return self.violations[0].reproducer if self.violations else ""

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        states = counted(self.distinct, "distinct state")
        judged = f"{self.broken:,} of {states} break a rule"
        if not self.broken:
            judged = f"none of {states} breaks a rule"
        if self.ok:
            judged = f"{'so far' if self.interrupted else 'ok:'} {judged}"
        if self.missed and not (self.violations or self.interrupted):
            judged = f"no state was cut during: {', '.join(self.missed)}; {judged}"
        if self.failed:
            judged = f"the run did not come to its end; {judged}"
        return f"{judged}, profile {self.profile}, durability {self.durability}"

    @property
    def notes(self) -> list[str]:
        """See TableReport."""
        of = f" of walkit with the mutant {self.mutant!r}" if self.mutant else ""
        notes = [f"{self.scenario}{of}: {self.about}"]
        if self.interrupted:
            notes.append("Interrupted: the rest was not explored.")
        return notes

    def _plain_notes(self) -> int:
        return 1

    def _head(self) -> Cells:
        return ()

    def _cells(self) -> list[Cells]:
        return [
            ("states judged", f"{self.states:,} ({self.distinct:,} distinct)"),
            ("states that a cut may leave", large(self.possible)),
            ("points of power cuts", f"{len(self.points):,}"),
            ("of them explored whole", f"{self.whole_points:,}"),
            ("coverage, mean over points", f"{self.coverage:.1%}"),
            ("states that break a rule", f"{self.broken:,}"),
            *((f"states that break {rule!r}", f"{count:,}") for rule, count in self.rules.items()),
            *((f"states cut during: {name}", f"{count:,}") for name, count in self.covered.items()),
            ("time", f"{self.duration_s:.1f} s"),
        ]

    def _lines_below(self) -> Sequence[str]:
        return [self.verdict, *(line for v in self.violations for line in str(v).splitlines())]

    def _html_below(self) -> Sequence[Markup]:
        found = [Markup(v._repr_html_()) for v in self.violations]
        return [tag("div", tag("b", self.verdict)), *found]

    def _facts(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "profile": self.profile,
            "seed": self.seed,
            "budget": self.budget,
            "durability": self.durability,
            "mutant": self.mutant,
            "ok": self.ok,
            "states": self.states,
            "distinct": self.distinct,
            "possible": str(self.possible),
            "points": len(self.points),
            "whole_points": self.whole_points,
            "coverage": round(self.coverage, 4),
            "broken": self.broken,
            "rules": dict(self.rules),
            "covered": self.covered,
            "missed": list(self.missed),
            "interrupted": self.interrupted,
            "duration_s": round(self.duration_s, 3),
            "violations": [
                {
                    "rule": v.rule,
                    "text": v.text,
                    "point": v.point,
                    "operation": v.operation,
                    "state": str(v.state),
                    "lost": list(v.lost),
                    "reproducer": v.reproducer,
                }
                for v in self.violations
            ],
        }


def large(number: int) -> str:
    """Return a count that may be far too large to be written out."""
    if number < 1_000_000_000:
        return f"{number:,}"
    digits = str(number)
    return f"{digits[0]}.{digits[1]} x 10^{len(digits) - 1}"
