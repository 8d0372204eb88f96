"""The arguments of `walkit simulate world`, and its handler."""

from __future__ import annotations

import argparse
from typing import Any

from walkit.cli import values
from walkit.cli.output import progress_shown, publish, say
from walkit.cli.parsers import add_command, add_kinds, add_option, add_report_options

PROGRESS_EVERY = 100


def add_simulate(commands: Any) -> None:
    """Add `simulate` with its kinds to the commands."""
    kinds = add_kinds(
        commands,
        "simulate",
        "run real shells and cores in virtual time",
        "walkit simulate world --seed 1 --schedules 200",
        "subject of the simulation",
    )
    world = add_command(
        kinds,
        "world",
        "let a primary, replicas and delta readers live through faults drawn from a seed",
        ": lost, repeated and late messages, cut links, crashes, failed writes, claims that expire. Each step is "
        "checked; of a schedule that breaks a rule the shortest that is found is printed, with the command that runs "
        "it again. Each kind of event is counted. Exit code 1 if a schedule breaks a rule, or if something that "
        "100 schedules have to show never happens",
        "walkit simulate world --seed 1 --schedules 200",
        simulate_world,
    )
    add_option(world, "--seed", values.number, 0, "the first seed")
    world.add_argument(
        "--schedules",
        type=values.count,
        default=100,
        metavar="N",
        help="how many seeds, each a schedule (default: 100; 1 with --keep)",
    )
    add_option(
        world,
        "--keep",
        values.numbers,
        None,
        "only these faults of the seed's schedule, by number; 'none' for none",
    )
    add_option(
        world,
        "--chaos-ms",
        values.milliseconds,
        None,
        "virtual milliseconds in which faults begin (default: 15000)",
        metavar="MS",
    )
    add_report_options(world)


def simulate_world(args: argparse.Namespace) -> int:
    """Run the schedules, and print what came of them; 1 if one broke a rule, or something never happened."""
    from walkit.simulate.world_faults import CHAOS_MS
    from walkit.simulate.world_report import explore

    shown = progress_shown() and not args.json

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
    publish(
        "simulate.world", lambda: report.text().splitlines(), report.to_dict, as_json=args.json, out=args.out
    )
    return 1 if report.failed else 0
