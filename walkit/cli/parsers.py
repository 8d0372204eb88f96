"""Common parts of the parsers of all commands."""

from __future__ import annotations

import argparse
import re
import textwrap
from collections.abc import Callable
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from walkit.cli import values

EXIT_CODES = "exit codes: 0 fine, 1 found a problem, 2 bad arguments, 3 could not run, 130 interrupted"
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


class Parser(argparse.ArgumentParser):
    """A parser whose complaint about an unknown name ends with the nearest one that it knows."""

    kinds: Any = None
    """The parsers below this one; None if it has none."""

    def error(self, message: str) -> NoReturn:
        """Print usage and complaint, and exit with 2."""
        choice = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        option = re.search(r"unrecognized arguments: .*?(--[^\s=]+)", message)
        near: list[str] = []
        if choice:
            near = get_close_matches(choice[1], re.findall(r"[\w.:-]+", choice[2]), 1)
        elif option:
            near = get_close_matches(option[1], options_of(self), 1)
        super().error(f"{message}; did you mean {near[0]}?" if near else message)


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Return the long options that the help of a command names."""
    return list(dict.fromkeys(re.findall(r"--[a-z][a-z-]*", parser.format_usage())))


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
    loudness = parser.add_mutually_exclusive_group()
    loudness.add_argument("-q", "--quiet", action="store_true", help="print only results and errors")
    loudness.add_argument(
        "-v", "--verbose", action="store_true", help="also print walkit's events as they happen"
    )
    parser.set_defaults(run=_later(run) if isinstance(run, str) else run, parser=parser)
    return parser


def add_kinds(commands: Any, name: str, brief: str, example: str, title: str) -> Any:
    """Add a command that is nothing without one of its kinds, and return what these are added to."""
    parser = _add_parser(commands, name, brief, "", example)
    parser.kinds = parser.add_subparsers(dest="kind", metavar="KIND", required=True, title=title)
    return parser.kinds


def _add_parser(commands: Any, name: str, brief: str, detail: str, example: str) -> Parser:
    parser: Parser = commands.add_parser(
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
