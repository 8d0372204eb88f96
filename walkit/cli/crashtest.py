"""`walkit crashtest`: its handler."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

from walkit.cli.output import bar, echo, note, publish
from walkit.cli.usage import UsageError

if TYPE_CHECKING:
    from walkit._internal.report import TableReport
    from walkit.crashlab import Mutant, Profile, Scenario
    from walkit.crashlab.summary import Explorations

DEFAULT_PROFILES = ("contract", "ext4-ordered")
JOBS_MAX = 8


def crashtest(args: argparse.Namespace) -> int:
    """Explore the scenarios, and print the results; 1 if a state breaks a rule."""
    if args.list:
        _list(args)
        return 0
    mutant = _mutant(args.mutant)
    scenarios, profiles = _scenarios(args.scenario, mutant), _profiles(args.profile)
    if args.save_violation is not None and os.path.lexists(args.save_violation):
        raise UsageError(f"--save-violation {args.save_violation} is there already; give a new folder")
    report = _explored(scenarios, profiles, mutant, args)
    is_single = len(report.explorations) == 1 and not report.interrupted
    shown = report.explorations[0] if is_single else report
    publish(
        "crashtest",
        args,
        lambda: [*shown.text().splitlines(), *_coverage(report, args.coverage)],
        report.to_dict,
    )
    if args.save_violation is not None:
        _save(report, args.save_violation)
    if report.interrupted and report.ok:
        raise KeyboardInterrupt
    return 0 if report.ok else 1


def _coverage(report: Explorations, wanted: bool) -> list[str]:
    from walkit.crashlab.summary import CoverageTable

    table = CoverageTable(report.explorations)
    return ["", table.title, *table.text().splitlines()] if wanted else []


def _mutant(name: str | None) -> Mutant | None:
    if name is None:
        return None
    from walkit.crashlab.museum import MUTANTS

    if name not in MUTANTS:
        raise UsageError(f"--mutant {name}: it is one of {', '.join(MUTANTS)}")
    return MUTANTS[name]


def _scenarios(names: list[str] | None, mutant: Mutant | None) -> list[Scenario]:
    """Return the chosen scenarios, each once."""
    from walkit.crashlab.scenarios import SCENARIOS, scenario_of

    if names is None:
        names = ["all"] if mutant is None else [mutant.scenario]
    if "all" in names:
        names = list(SCENARIOS)
    return [scenario_of(name) for name in dict.fromkeys(names)]


def _profiles(names: list[str] | None) -> list[Profile]:
    """Return the chosen profiles, each once."""
    from walkit.crashlab.profiles import profile_of

    return [profile_of(name) for name in dict.fromkeys(names or DEFAULT_PROFILES)]


def _explored(
    scenarios: list[Scenario], profiles: list[Profile], mutant: Mutant | None, args: argparse.Namespace
) -> Explorations:
    """Explore each scenario under each profile; Ctrl-C ends it with the explorations that are complete."""
    from walkit.crashlab.campaign import explore_all

    pairs = [(scenario, profile) for scenario in scenarios for profile in profiles]
    jobs = min(args.jobs or min(os.cpu_count() or 1, JOBS_MAX), len(pairs))
    if jobs == 1:
        with nullcontext() if mutant is None else mutant.applied():
            return _one_by_one(pairs, args)
    names = [(scenario.name, profile.name) for scenario, profile in pairs]
    with bar("crash states", " explorations") as move:
        return explore_all(
            names, args.budget, args.seed, mutant.name if mutant else "", jobs=jobs, progress=move
        )


def _one_by_one(pairs: list[tuple[Scenario, Profile]], args: argparse.Namespace) -> Explorations:
    from walkit.crashlab.explorer import explore
    from walkit.crashlab.summary import Explorations

    found = []
    try:
        for number, (scenario, profile) in enumerate(pairs, 1):
            which = f" ({number} of {len(pairs)})" if len(pairs) > 1 else ""
            with bar(f"{scenario.name}, {profile.name}{which}", " states") as move:
                found.append(explore(scenario, args.budget, args.seed, profile, progress=move or False))
            if found[-1].interrupted:
                break
    except KeyboardInterrupt:
        if not found:
            raise
    left = tuple(f"{scenario.name} ({profile.name})" for scenario, profile in pairs[len(found) :])
    return Explorations(tuple(found), left)


def _save(report: Explorations, folder: str) -> None:
    if not report.violations:
        echo("no violation, so that none is saved")
        return
    violation = report.violations[0]
    violation.save(folder)
    note(f"what the power cut left is saved as {folder}: {violation.scenario}, {violation.rule}")


def _list(args: argparse.Namespace) -> None:
    from walkit.crashlab.profiles import ProfileTable
    from walkit.crashlab.summary import MutantTable, RuleTable, ScenarioTable

    tables: dict[str, TableReport] = {
        "scenarios": ScenarioTable(),
        "profiles": ProfileTable(),
        "rules": RuleTable(),
        "mutants": MutantTable(),
    }
    lines: list[str] = []
    for table in tables.values():
        lines += [*([""] if lines else []), table.title, *table.text().splitlines()]
    publish(
        "crashtest.list",
        args,
        lambda: lines,
        lambda: {name: table.to_dict() for name, table in tables.items()},
    )
