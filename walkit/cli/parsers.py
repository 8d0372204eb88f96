"""What the parsers of all commands have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

EXIT_CODES = "exit codes: 0 fine, 1 found a problem, 2 bad arguments, 3 could not run"


def add_command(
    commands: Any,
    name: str,
    brief: str,
    detail: str,
    example: str,
    run: Callable[[argparse.Namespace], int],
) -> argparse.ArgumentParser:
    """Add a command to its siblings and return its parser; `run` is its handler, which returns the exit code."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=brief,
        description=f"{brief[0].upper()}{brief[1:]}{detail}.",
        epilog=f"example: {example}\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=run)
    return parser


def add_report_options(
    parser: argparse.ArgumentParser, out: str = "save it there; with --json, as JSON"
) -> None:
    """Add --json and --out, of a command that makes a report; `out` is the help of the second."""
    parser.add_argument("--json", action="store_true", help="print JSON to standard output")
    parser.add_argument("--out", metavar="FILE", help=out)
