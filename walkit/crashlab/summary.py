"""Tables over the laboratory: the findings of several explorations, the scenarios, and the mutants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from walkit._internal.html import Markup, tag
from walkit._internal.report import Cells, TableReport
from walkit._internal.text import counted
from walkit.crashlab.coverage import COVERAGE
from walkit.crashlab.crash_rules import RULES
from walkit.crashlab.exploration import Exploration, Violation, large
from walkit.crashlab.museum import MUTANTS
from walkit.crashlab.scenarios import SCENARIOS


@dataclass(frozen=True)
class Explorations(TableReport):
    """The outcome of several explorations, a row each."""

    title = "Crash states"
    left_columns = 2

    explorations: tuple[Exploration, ...]
    left_out: tuple[str, ...] = ()
    """Scenarios that did not start, as the run was interrupted before."""

    @property
    def ok(self) -> bool:
        """Whether each scenario came to its end, and no state that was looked at breaks a rule."""
        return all(each.ok for each in self.explorations)

    @property
    def interrupted(self) -> bool:
        """Whether the run ended early."""
        return bool(self.left_out) or any(each.interrupted for each in self.explorations)

    @property
    def violations(self) -> tuple[Violation, ...]:
        """The violations of all of them, in order."""
        return tuple(violation for each in self.explorations for violation in each.violations)

    @property
    def verdict(self) -> str:
        """The outcome in one line."""
        distinct = counted(sum(each.distinct for each in self.explorations), "distinct state")
        if self.ok:
            return f"{'so far' if self.interrupted else 'ok:'} none of {distinct} breaks a rule"
        if missed := sorted({f"{e.scenario}: {name}" for e in self.explorations for name in e.missed}):
            distinct = f"{distinct} (not cut during: {'; '.join(missed)})"
        return f"{sum(each.broken for each in self.explorations):,} of {distinct} break a rule"

    @property
    def notes(self) -> list[str]:
        """See TableReport."""
        notes = []
        if self.explorations:
            first = self.explorations[0]
            of = f"walkit with the mutant {first.mutant!r}" if first.mutant else "walkit as it is"
            notes.append(
                f"{of}: seed {first.seed}, a budget of {counted(first.budget, 'state')} per scenario and profile"
            )
        if self.interrupted:
            missing = f"; not started: {', '.join(self.left_out)}" if self.left_out else ""
            notes.append(f"Interrupted: the rest was not explored{missing}.")
        return notes

    def _plain_notes(self) -> int:
        return len(self.notes) - self.interrupted

    def _head(self) -> Cells:
        return (
            "scenario",
            "profile",
            "points",
            "whole",
            "possible",
            "judged",
            "distinct",
            "coverage",
            "break",
            "time",
        )

    def _cells(self) -> list[Cells]:
        return [
            (
                each.scenario,
                each.profile,
                f"{len(each.points):,}",
                f"{each.whole_points:,}",
                large(each.possible),
                f"{each.states:,}",
                f"{each.distinct:,}",
                f"{each.coverage:.1%}",
                f"{each.broken:,}",
                f"{each.duration_s:.1f} s",
            )
            for each in self.explorations
        ]

    def _row_titles(self) -> Sequence[str]:
        return [each.about for each in self.explorations]

    def _lines_below(self) -> Sequence[str]:
        return [self.verdict, *(line for v in self.violations for line in _violation_text(v).splitlines())]

    def _html_below(self) -> Sequence[Markup]:
        found = [Markup(v._repr_html_()) for v in self.violations]
        return [tag("div", tag("b", self.verdict)), *found]

    def _facts(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "interrupted": self.interrupted,
            "left_out": list(self.left_out),
            "explorations": [each.to_dict() for each in self.explorations],
        }


def _violation_text(violation: Violation) -> str:
    return f"{violation.scenario}: {violation}"


@dataclass(frozen=True)
class CoverageTable(TableReport):
    """The number of judged crash states that were cut during each thing, over several explorations."""

    title = "Crash states that were cut while"
    left_columns = 2

    explorations: tuple[Exploration, ...]

    def _states(self, name: str) -> dict[str, int]:
        counts: dict[str, int] = {}
        for each in self.explorations:
            if states := each.covered.get(name, 0):
                counts[each.scenario] = counts.get(each.scenario, 0) + states
        return counts

    def _head(self) -> Cells:
        return ("during", "which means", "states", "scenarios")

    def _cells(self) -> list[Cells]:
        found = ((name, text, self._states(name)) for name, text in COVERAGE.items())
        return [(name, text, f"{sum(s.values()):,}", f"{len(s):,}") for name, text, s in found]

    def _facts(self) -> dict[str, Any]:
        return {name: self._states(name) for name in COVERAGE}


@dataclass(frozen=True)
class ScenarioTable(TableReport):
    """The scenarios, each with its events."""

    title = "Scenarios that run until the power cut"
    left_columns = 3

    def _head(self) -> Cells:
        return ("scenario", "durability", "what happens")

    def _cells(self) -> list[Cells]:
        return [(s.name, s.options.durability, s.text) for s in SCENARIOS.values()]

    def _facts(self) -> dict[str, Any]:
        return {name: scenario.text for name, scenario in SCENARIOS.items()}


@dataclass(frozen=True)
class MutantTable(TableReport):
    """The historic bugs that can be put back."""

    title = "Historic bugs, each put back into walkit"
    left_columns = 4

    def _head(self) -> Cells:
        return ("mutant", "scenario", "bug", "seen in")

    def _cells(self) -> list[Cells]:
        return [(m.name, m.scenario, m.text, m.seen_in) for m in MUTANTS.values()]

    def _facts(self) -> dict[str, Any]:
        return {
            m.name: {"scenario": m.scenario, "text": m.text, "seen_in": m.seen_in} for m in MUTANTS.values()
        }


@dataclass(frozen=True)
class RuleTable(TableReport):
    """The rules that a crash state is judged by."""

    title = "Rules that judge a crash state, in this order"
    left_columns = 2

    def _head(self) -> Cells:
        return ("rule", "what holds")

    def _cells(self) -> list[Cells]:
        return list(RULES.items())

    def _facts(self) -> dict[str, Any]:
        return dict(RULES)
