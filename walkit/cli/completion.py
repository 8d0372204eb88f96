"""`walkit completion`: a script by which a shell completes commands, kinds and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from walkit.cli.arguments import Parser, make_parser, options_of
from walkit.cli.output import print_lines

SCRIPT = """[ -n "$ZSH_VERSION" ] && autoload -U bashcompinit && bashcompinit
_walkit() {{
  local words= path= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in -*) ;; *) path="$path $word" ;; esac
  done
  case "$path" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _walkit walkit"""


def completion(_: argparse.Namespace) -> int:
    """Print the script."""
    # The longer names come first: a shell takes the first pattern that fits.
    known = sorted(_words(make_parser()), key=lambda each: -len(each[0]))
    cases = [f'    "{path}"*) words="{" ".join(words)}" ;;' for path, words in known]
    print_lines(SCRIPT.format(cases="\n".join(cases)).splitlines())
    return 0


def _words(parser: Parser, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the names that may follow a command's name, for it and for all below it."""
    below = parser.kinds.choices if parser.kinds is not None else {}
    yield path, [*below, *options_of(parser)]
    for name, each in below.items():
        yield from _words(each, f"{path} {name}")
