"""An exploration in a process of its own: a mutant is in that process alone, and not in the one that asks."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict, dataclass, fields
from time import monotonic
from typing import Any

from walkit._internal.arguments import check_choice
from walkit.crashlab.exploration import Exploration, PointResult
from walkit.crashlab.explorer import explore
from walkit.crashlab.museum import MUTANTS
from walkit.crashlab.profiles import profile_of
from walkit.crashlab.scenarios import scenario_of
from walkit.workload.role import LineReporter

LINE_S = 0.2
"""Least time between two lines of progress."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExploreWish:
    """A request to explore. OptionsError for an unknown name."""

    scenario: str = "append"
    profile: str = "ext4-ordered"
    budget: int = 200
    seed: int = 0
    mutant: str = ""
    """The bug to be put back first; "" for walkit as it is."""

    def __post_init__(self) -> None:
        scenario_of(self.scenario)
        profile_of(self.profile)
        if self.mutant:
            check_choice(self.mutant, MUTANTS, "mutant")


@dataclass(frozen=True, kw_only=True)
class FoundViolation:
    """A violation as it comes out of another process: all but the storage."""

    rule: str
    text: str
    point: int
    operation: str
    lost: tuple[str, ...]
    reproducer: str


@dataclass(frozen=True)
class Explored:
    """The result of an exploration in another process."""

    exploration: Exploration
    """Its counts and points; its violations are those beside it."""
    violations: tuple[FoundViolation, ...]


def plain_of(exploration: Exploration) -> dict[str, Any]:
    """Return an exploration as plain values, of which `explored_of` makes one again."""
    kept = [f.name for f in fields(Exploration) if f.name not in ("points", "violations")]
    return {
        **{name: getattr(exploration, name) for name in kept},
        "points": [asdict(point) for point in exploration.points],
        "violations": [
            {f.name: getattr(v, f.name) for f in fields(FoundViolation)} for v in exploration.violations
        ],
    }


def explored_of(plain: dict[str, Any]) -> Explored:
    """Return the findings, from their plain values."""
    points = tuple(PointResult(**point) for point in plain["points"])
    return Explored(
        exploration=Exploration(**{**plain, "points": points, "violations": ()}),
        violations=tuple(
            FoundViolation(**{**each, "lost": tuple(each["lost"])}) for each in plain["violations"]
        ),
    )


def explore_alone(lines: LineReporter, **wished: Any) -> None:
    """Explore as requested, and write how many states are judged, and at last the findings: the role of the child."""
    lines.leash()
    next_line = monotonic()

    def progress(done: int, total: int) -> None:
        nonlocal next_line
        if monotonic() >= next_line:
            next_line = monotonic() + LINE_S
            lines.write(done=done, total=total)

    wish = ExploreWish(**wished)
    with MUTANTS[wish.mutant].applied() if wish.mutant else nullcontext():
        found = explore(wish.scenario, wish.budget, wish.seed, wish.profile, progress=progress)
    lines.write(found=plain_of(found))
