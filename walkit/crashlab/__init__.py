"""The crash laboratory: the states that a power cut may leave, and whether the log keeps its promises in each.

`explore` runs a scenario on a disk that notes each moment, makes the states that a power cut may leave at each under a
profile of file systems, recovers each, and judges it by `RULES`. `museum.MUTANTS` are historic bugs of other
logs, put back into walkit: each is found. The names load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from walkit._internal.arrow import load as _load

if TYPE_CHECKING:
    from walkit.crashlab import museum as museum
    from walkit.crashlab.coverage import COVERAGE as COVERAGE
    from walkit.crashlab.crash_rules import RULES as RULES
    from walkit.crashlab.exploration import Exploration as Exploration
    from walkit.crashlab.exploration import PointResult as PointResult
    from walkit.crashlab.exploration import Violation as Violation
    from walkit.crashlab.explorer import explore as explore
    from walkit.crashlab.explorer import replay as replay
    from walkit.crashlab.mutant import Mutant as Mutant
    from walkit.crashlab.profiles import PROFILES as PROFILES
    from walkit.crashlab.profiles import Profile as Profile
    from walkit.crashlab.scenarios import SCENARIOS as SCENARIOS
    from walkit.crashlab.scenarios import Scenario as Scenario
    from walkit.crashlab.script import Script as Script
    from walkit.crashlab.verdict import crash_verdict as crash_verdict
    from walkit.crashlab.verdict import explore_options as explore_options

_HOMES = {
    "exploration": ("Exploration", "PointResult", "Violation"),
    "explorer": ("explore", "replay"),
    "mutant": ("Mutant",),
    "crash_rules": ("RULES",),
    "profiles": ("PROFILES", "Profile"),
    "coverage": ("COVERAGE",),
    "scenarios": ("SCENARIOS", "Scenario"),
    "script": ("Script",),
    "verdict": ("crash_verdict", "explore_options"),
}

__all__ = [
    "COVERAGE",
    "PROFILES",
    "RULES",
    "SCENARIOS",
    "Exploration",
    "Mutant",
    "PointResult",
    "Profile",
    "Scenario",
    "Script",
    "Violation",
    "crash_verdict",
    "explore",
    "explore_options",
    "museum",
    "replay",
]


def __getattr__(name: str) -> Any:
    if name == "museum":
        return _load("walkit.crashlab.museum")
    for module, its_names in _HOMES.items():
        if name in its_names:
            value = globals()[name] = getattr(_load(f"walkit.crashlab.{module}"), name)
            return value
    raise AttributeError(f"module 'walkit.crashlab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
