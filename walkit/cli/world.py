"""The arguments of `walkit simulate world`, and its handler."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from walkit.cli import values
from walkit.cli.output import publish, say
from walkit.cli.parsers import EXIT_CODES, HelpLines, add_command, add_report_options

PROGRESS_EVERY = 100


def add_simulate(commands: Any) -> None:
    """Add `simulate` with its kinds to the commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="run the real cores in virtual time",
        description="Run the real cores in virtual time.",
        epilog=f"example: walkit simulate world --seed 1 --schedules 200\n{EXIT_CODES}",
        formatter_class=HelpLines,
        allow_abbrev=False,
    )
    kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True, title="what to simulate")
    _add_world(kinds)


def _add_world(kinds: Any) -> None:
    world = add_command(
        kinds,
        "world",
        "let a primary, replicas and delta readers live through faults drawn from a seed",
        ": lost, repeated and late messages, cut links, crashes, failed writes, claims that expire. Each step is "
        "checked; of a schedule that breaks a rule the shortest that is found is printed, with the command that runs "
        "it again. Exit code 1 where there is one",
        "walkit simulate world --seed 1 --schedules 200",
        simulate_world,
    )
    world.add_argument(
        "--seed", type=values.number, default=0, metavar="N", help="the first seed (default: 0)"
    )
    world.add_argument(
        "--schedules",
        type=values.count,
        default=100,
        metavar="N",
        help="how many seeds, each a schedule (default: 100; 1 with --keep)",
    )
    world.add_argument(
        "--keep",
        type=values.numbers,
        metavar="N,N",
        help="only these faults of the seed's schedule, by number; 'none' for none",
    )
    world.add_argument(
        "--chaos-ms",
        type=values.milliseconds,
        metavar="MS",
        help="virtual milliseconds in which faults begin (default: 1500)",
    )
    add_report_options(world)


def simulate_world(args: argparse.Namespace) -> int:
    """Run the schedules, and print what came of them; 1 where one broke a rule."""
    from walkit.simulate.world_faults import CHAOS_MS
    from walkit.simulate.world_report import explore

    shown = sys.stderr.isatty() and not args.json

    def progress(done: int) -> None:
        if shown and done % PROGRESS_EVERY == 0:
            say(f"simulate world: {done:,} schedules")

    report = explore(
        args.seed,
        args.schedules if args.keep is None else 1,
        keep=args.keep,
        chaos_ms=CHAOS_MS if args.chaos_ms is None else args.chaos_ms,
        on_progress=progress,
    )
    publish(lambda: report.text().splitlines(), report.to_dict, as_json=args.json, out=args.out)
    return 1 if report.failed else 0
