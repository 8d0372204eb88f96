"""What the parsers of all commands have in common."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from typing import Any

EXIT_CODES = "exit codes: 0 fine, 1 found a problem, 2 bad arguments, 3 could not run"


class HelpLines(argparse.RawDescriptionHelpFormatter):
    """Help that fits the terminal: each line of a text is filled, but for an example, which is there to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return the text line by line, none wider than `width` but for examples."""
        return "\n".join(
            indent + line
            if line.startswith("example: ")
            else textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
            for line in text.splitlines()
        )


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
        formatter_class=HelpLines,
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
