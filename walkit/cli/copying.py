"""`walkit copy`: a consistent copy of a log, beside its writer."""

from __future__ import annotations

import argparse
from typing import Any

from walkit.cli.output import bar, publish
from walkit.cli.parsers import LOG_HELP, add_command, add_report_options


def add_copy(commands: Any) -> None:
    """Add `copy` to the commands."""
    parser = add_command(
        commands,
        "copy",
        "make a consistent copy of a log, beside its writer",
        "; the records on stable storage, checked, in a new place; a killed copy continues when it is run again",
        "walkit copy orders.log backup/orders.log",
        copy,
    )
    parser.add_argument("log", metavar="LOG", help=LOG_HELP)
    parser.add_argument("target", metavar="DIR", help="new folder or URL of the copy")
    add_report_options(parser)


def copy(args: argparse.Namespace) -> int:
    """Copy a log, and print what was copied."""
    from walkit.copier.log_copy import copy as copy_log

    with bar(f"copy {args.log}") as progress:
        report = copy_log(args.log, args.target, progress)
    publish("copy", report.lines, report.to_dict, as_json=args.json, out=args.out)
    return 0
