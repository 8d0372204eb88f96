"""The arguments of `walkit crashtest`, and its handler."""

from __future__ import annotations

import argparse
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from walkit.cli import values
from walkit.cli.output import bar, publish, say
from walkit.cli.parsers import add_command, add_option, add_report_options
from walkit.cli.usage import UsageError

if TYPE_CHECKING:
    from walkit._report import TableReport
    from walkit.crashlab import Mutant, Profile, Scenario
    from walkit.crashlab.summary import Explorations

BUDGET = 500


def add_crashtest(commands: Any) -> None:
    """Add `crashtest` to the commands."""
    parser = add_command(
        commands,
        "crashtest",
        "cut the power at each moment and judge what that may leave",
        ": a scenario is run, and each state that a cut leaves is recovered and judged by rules. Everything is in "
        "memory, on a model of the page cache. Exit "
        "code 1 where a state breaks a rule: it is printed as small as it can be made, with the code that makes it "
        "again",
        "walkit crashtest --scenario append --profile ext4-ordered --budget 500",
        crashtest,
    )
    parser.add_argument(
        "--scenario",
        action="append",
        metavar="NAME",
        help="what is run, more than once for more (default: all; with --mutant, the one it shows in)",
    )
    add_option(
        parser,
        "--profile",
        str,
        "ext4-ordered",
        "what a power cut may do to what no sync covers",
        metavar="NAME",
    )
    add_option(parser, "--budget", values.count, BUDGET, "states that are judged of each scenario")
    add_option(parser, "--seed", values.number, 0, "what draws begin with")
    parser.add_argument(
        "--mutant", metavar="NAME", help="judge walkit with this historic bug put back: 1 is the answer then"
    )
    parser.add_argument(
        "--save-violation", metavar="DIR", help="write the files of the first violation into a new folder"
    )
    parser.add_argument(
        "--list", action="store_true", help="list scenarios, profiles, rules and mutants, and end"
    )
    add_report_options(parser)


def crashtest(args: argparse.Namespace) -> int:
    """Explore the scenarios, and print what came of them; 1 where a state breaks a rule."""
    if args.list:
        _list(args)
        return 0
    from walkit.crashlab.profiles import profile_of

    mutant = _mutant(args.mutant)
    scenarios, profile = _scenarios(args.scenario, mutant), profile_of(args.profile)
    if args.save_violation is not None and os.path.lexists(args.save_violation):
        raise UsageError(f"--save-violation {args.save_violation} is there already; give a new folder")
    with nullcontext() if mutant is None else mutant.applied():
        report = _explored(scenarios, profile, args)
    is_single = len(report.explorations) == 1 and not report.interrupted
    shown = report.explorations[0] if is_single else report
    publish("crashtest", lambda: shown.text().splitlines(), report.to_dict, as_json=args.json, out=args.out)
    if args.save_violation is not None:
        _save(report, args.save_violation)
    if report.interrupted and report.ok:
        raise KeyboardInterrupt
    return 0 if report.ok else 1


def _mutant(name: str | None) -> Mutant | None:
    if name is None:
        return None
    from walkit.crashlab.museum import MUTANTS

    if name not in MUTANTS:
        raise UsageError(f"--mutant {name}: it is one of {', '.join(MUTANTS)}")
    return MUTANTS[name]


def _scenarios(names: list[str] | None, mutant: Mutant | None) -> list[Scenario]:
    """Return the scenarios that are asked for, each once."""
    from walkit.crashlab.scenarios import SCENARIOS, scenario_of

    if names is None:
        names = ["all"] if mutant is None else [mutant.scenario]
    if "all" in names:
        names = list(SCENARIOS)
    return [scenario_of(name) for name in dict.fromkeys(names)]


def _explored(scenarios: list[Scenario], profile: Profile, args: argparse.Namespace) -> Explorations:
    """Explore one after the other; Ctrl-C ends it with what was found until then."""
    from walkit.crashlab.explorer import explore
    from walkit.crashlab.summary import Explorations

    found = []
    try:
        for number, scenario in enumerate(scenarios, 1):
            which = f" ({number} of {len(scenarios)})" if len(scenarios) > 1 else ""
            with bar(f"{scenario.name}{which}", " states") as move:
                found.append(
                    explore(
                        scenario, args.budget, args.seed, profile, progress=False if move is None else move
                    )
                )
            if found[-1].interrupted:
                break
    except KeyboardInterrupt:
        if not found:
            raise
    return Explorations(tuple(found), tuple(scenario.name for scenario in scenarios[len(found) :]))


def _save(report: Explorations, folder: str) -> None:
    if not report.violations:
        say("no violation, so that none is saved")
        return
    violation = report.violations[0]
    violation.save(folder)
    say(f"what the power cut left is saved as {folder}: {violation.scenario}, {violation.rule}")


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
        lambda: lines,
        lambda: {name: table.to_dict() for name, table in tables.items()},
        as_json=args.json,
        out=args.out,
    )
