"""`walkit doctor`: its arguments, and its handler."""

from __future__ import annotations

import argparse
from typing import Any

from walkit.cli.output import progress_shown, publish, say
from walkit.cli.parsers import add_command, add_report_options


def add_doctor(commands: Any) -> None:
    """Add `doctor` to the commands."""
    parser = add_command(
        commands,
        "doctor",
        "report packages, disks and problems",
        ": packages and the extras that bring them, file system, mount options and raw device of folders, Java, "
        "browser, JupyterLab; each problem with its remedy. Exit code 1 for a problem",
        "walkit doctor --path /var/lib/orders --spark",
        doctor,
    )
    parser.add_argument(
        "--path",
        action="append",
        metavar="DIR",
        help="a folder whose disk is checked, or the URL of an object store; repeat it for more (default: the "
        "temporary and the current folder)",
    )
    parser.add_argument("--spark", action="store_true", help="start Spark, too, which takes some seconds")
    add_report_options(parser)


def doctor(args: argparse.Namespace) -> int:
    """Check the machine, and print the findings; 1 if something is wrong."""
    from walkit.measure.health import doctor as look

    progress = (lambda what: say(f"doctor: {what}")) if progress_shown() else None
    report = look(args.path, spark=args.spark, progress=progress)
    publish("doctor", lambda: report.text().splitlines(), report.to_dict, as_json=args.json, out=args.out)
    return 0 if report.ok else 1
