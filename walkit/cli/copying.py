"""`walkit copy`: a consistent copy of a log, beside its writer."""

from __future__ import annotations

import argparse
from typing import Any

from walkit.cli.output import bar, publish


def add_copy(commands: Any, command: Any) -> None:
    """Add the subcommand; `command` makes a parser with what all of them have."""
    parser = command(
        commands,
        "copy",
        "make a consistent copy of a log, beside its writer",
        "; what is on stable storage, checked, in a new folder; one that was killed continues when it is run again",
        "walkit copy orders.log backup/orders.log",
        copy,
    )
    parser.add_argument("log", metavar="LOG", help="folder of the log")
    parser.add_argument("target", metavar="DIR", help="folder of the copy, which must not be there")
    parser.add_argument("--json", action="store_true", help="print JSON to standard output")
    parser.add_argument("--out", metavar="FILE", help="save the report there; with --json, as JSON")


def copy(args: argparse.Namespace) -> int:
    """Copy a log, and print what was copied."""
    from walkit.state.log_copy import copy as copy_log

    with bar(f"copy {args.log}") as progress:
        report = copy_log(args.log, args.target, progress)
    publish(report.lines, report.to_dict, as_json=args.json, out=args.out)
    return 0
