"""The parser that the table of commands makes. Handlers are in the other modules, and are imported when they run."""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any, NoReturn

from walkit.cli.table import COMMANDS
from walkit.cli.values import VALUES, PlaceAt

EXIT_CODES = "exit codes: 0 fine, 1 found a problem, 2 bad arguments, 3 could not run, 130 interrupted"
ARGUMENT = re.compile(
    r"(?P<names>-\S+(?: -\S+)*)? ?(?P<metavar>[^<=>.*]+)?(?P<many>\.\.\.|\*)?"
    r"(?:<(?P<kind>\w+)>)?(?:=(?P<default>[^>]*))?(?:>(?P<dest>\w+))?"
)
"""An argument in the table, before its help."""


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
    return re.findall(r"^  (?:-\w, )?(--[a-z][a-z-]*)", parser.format_help(), re.MULTILINE)


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


def make_parser() -> Parser:
    """Return the parser of the command line."""
    parser = Parser(
        prog="walkit",
        description="Look into write-ahead logs, check them, measure them.",
        epilog=f"{EXIT_CODES}\nexample: walkit demo --out report",
        formatter_class=HelpLines,
        allow_abbrev=False,
    )
    parser.add_argument("-V", "--version", action="version", version=f"walkit {_version()}")
    parser.kinds = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, title="commands")
    groups: dict[str, list[str]] = {}
    for paragraph in re.sub(r"\n {4,}", " ", COMMANDS).strip().split("\n\n"):
        head, *lines = (line.removeprefix("  ") for line in paragraph.splitlines())
        if head.startswith("["):
            groups[head.strip("[]")] = lines
        else:
            _add_command(parser, head, lines, groups)
    return parser


def _add_command(parser: Parser, head: str, lines: list[str], groups: dict[str, list[str]]) -> None:
    """Add one paragraph of the table to the parser of the command line."""
    *names, handler = head.split() if ":" in head else (*head.split(), "")
    above: Parser = parser if len(names) == 1 else parser.kinds.choices[names[0]]
    brief, _, detail = lines[0].partition("|")
    made: Parser = above.kinds.add_parser(
        names[-1],
        help=brief,
        description=f"{brief[0].upper()}{brief[1:]}{detail}.",
        epilog=f"{lines[1].replace('$', 'example:', 1)}\n{EXIT_CODES}",
        formatter_class=HelpLines,
        allow_abbrev=False,
    )
    if not handler:
        made.kinds = made.add_subparsers(dest="kind", metavar="KIND", required=True, title="kinds")
        return
    made.set_defaults(run=_later(handler), parser=made)
    either = None
    for line in ("+ common", *lines[2:]):
        for argument in groups[line[2:]] if line.startswith("+") else [line]:
            either = (either or made.add_mutually_exclusive_group()) if argument.startswith("/") else None
            _add_argument(either or made, argument.removeprefix("/ "))


def _add_argument(parser: Any, line: str) -> None:
    given, _, text = line.partition("  ")
    found = ARGUMENT.fullmatch(given)
    assert found is not None, line
    names, metavar, many, kind, default, dest = found.groups()
    more: dict[str, Any] = {"help": argparse.SUPPRESS if text == "-" else text}
    if metavar is None and kind is None:
        more["action"] = "store_true"
    else:
        choices = metavar.split("|") if metavar is not None and metavar.islower() else None
        more |= {"type": VALUES.get(kind or metavar, str), "choices": choices}
        more |= {} if choices else {"metavar": metavar}
    if many is not None:
        more |= {"action": "append"} if names else {"nargs": "*"}
    if default is not None:
        more |= {"default": default, "help": f"{text} (default: {default})"}
    if kind == "token":
        more |= {"nargs": "?", "const": ""}
    if names and dest:
        more["dest"] = dest
    parser.add_argument(*(names.split() if names else [dest or metavar.lower()]), **more)


def _later(name: str) -> Callable[[argparse.Namespace], int]:
    """Return a handler that is imported when it runs."""
    module, _, function = name.partition(":")

    def run(args: argparse.Namespace) -> int:
        code: int = getattr(import_module(module), function)(args)
        return code

    return run


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments of one command; `run` is its handler. SystemExit after help, version or a complaint."""
    parser = make_parser()
    given = sys.argv[1:] if argv is None else list(argv)
    if not given or given in (["bench"], ["simulate"]):
        asked = parser.kinds.choices[given[0]] if given else parser
        asked.print_help(sys.stderr)
        raise SystemExit(2)  # nothing was done: a script that lost its arguments has to notice
    args, unknown = parser.parse_known_args(given)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    out = getattr(args, "out", None)
    if out is not None and any(_is_inside(out, log) for log in _logs_of(args)):
        parser.error(f"--out {out} is in the log's own folder; give a place outside it")
    return args


def _logs_of(args: argparse.Namespace) -> list[str]:
    """Return the folders of the logs that the arguments name."""
    named = [getattr(args, name, None) for name in ("log", "left", "right")]
    return [log.path if isinstance(log, PlaceAt) else log for log in named if log is not None]


def _version() -> str:
    import walkit

    return walkit.__version__


def _is_inside(path: str, folder: str) -> bool:
    if "://" in folder:
        folder = folder.removeprefix("file://")
    inner, outer = os.path.realpath(path), os.path.realpath(folder)
    return inner == outer or inner.startswith(outer.rstrip(os.sep) + os.sep)
