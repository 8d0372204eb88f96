"""Common parts of the parsers of all commands."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable
from importlib import import_module
from typing import Any

from walkit.cli import values

EXIT_CODES = "exit codes: 0 fine, 1 found a problem, 2 bad arguments, 3 could not run"
LOG_HELP = "folder of the log"
METAVARS: dict[Callable[[str], Any], str] = {
    values.count: "N",
    values.counts: "N,N",
    values.number: "N",
    values.numbers: "N,N",
    values.lsn: "LSN",
    values.seconds: "S",
}
"""Names of option values in the help, if the option sets none."""

Handler = Callable[[argparse.Namespace], int]


class HelpLines(argparse.RawDescriptionHelpFormatter):
    """Help that fits the terminal: each line of a text is filled, except an example, which is there to be copied."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Return the text line by line, none wider than `width` except examples."""
        return "\n".join(
            indent + line
            if line.startswith("example: ")
            else textwrap.fill(line, width, initial_indent=indent, subsequent_indent=indent)
            for line in text.splitlines()
        )


def add_command(
    commands: Any, name: str, brief: str, detail: str, example: str, run: Handler | str
) -> argparse.ArgumentParser:
    """Add a command to its siblings and return its parser.

    `run` is its handler, which returns the exit code; or MODULE:FUNCTION, imported when the command runs.
    """
    parser = _add_parser(commands, name, brief, detail, example)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.set_defaults(run=_later(run) if isinstance(run, str) else run)
    return parser


def add_kinds(commands: Any, name: str, brief: str, example: str, title: str) -> Any:
    """Add a command that is nothing without one of its kinds, and return what these are added to."""
    parser = _add_parser(commands, name, brief, "", example)
    return parser.add_subparsers(dest="kind", metavar="KIND", required=True, title=title)


def _add_parser(commands: Any, name: str, brief: str, detail: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name,
        help=brief,
        description=f"{brief[0].upper()}{brief[1:]}{detail}.",
        epilog=f"example: {example}\n{EXIT_CODES}",
        formatter_class=HelpLines,
        allow_abbrev=False,
    )
    return parser


def _later(name: str) -> Handler:
    module, _, function = name.partition(":")

    def run(args: argparse.Namespace) -> int:
        code: int = getattr(import_module(module), function)(args)
        return code

    return run


def add_option(
    parser: Any,
    flag: str,
    value: Callable[[str], Any],
    default: Any,
    what: str,
    *,
    dest: str | None = None,
    metavar: str | None = None,
) -> None:
    """Add an option with a value, whose default, if any, is in its help."""
    parser.add_argument(
        flag,
        type=value,
        default=default,
        dest=dest or flag.removeprefix("--").replace("-", "_"),
        metavar=metavar or METAVARS[value],
        help=what if default is None else f"{what} (default: {_shown(default)})",
    )


def _shown(default: Any) -> str:
    if isinstance(default, list):
        return ",".join(map(_shown, default))
    return f"{default:g}" if isinstance(default, float) else str(default)


def add_report_options(
    parser: argparse.ArgumentParser, out: str = "save it there; with --json, as JSON"
) -> None:
    """Add --json and --out, of a command that makes a report; `out` is the help of the second."""
    parser.add_argument("--json", action="store_true", help="print JSON to standard output")
    parser.add_argument("--out", metavar="FILE", help=out)
