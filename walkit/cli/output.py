"""How commands print: text and JSON to standard output, everything else to standard error, files saved whole."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, cast

Bar = Callable[[int, int], None]

COLOURS = {
    31: r"^\s*problem(?=: )|^NOT OK|\d+ problems? found$|"
    r"(?:^|(?<=  ))(?:corrupt|foreign|missing|unknown|lost|NO|problem)(?=$|  )",
    33: r"^\s*note(?=: )|(?:^|(?<=  ))(?:torn tail|stale|hole|note)(?=$|  )",
    32: r"^ok(?=: )|^no problem found$|(?:^|(?<=  ))intact(?=$|  )",
}
"""Verdicts in a report by the colour that a terminal gives them: red, yellow, green."""
_quiet = False
SCHEMA_VERSION = 1
"""Of all JSON that commands print: it grows if a field goes, or changes its meaning; new fields come without that."""


def open_streams() -> None:
    """Give the process the standard streams that it was started without, as `>&-` does: the null device.

    Python has None instead of such a stream. The next opened file would get its descriptor, even a segment of a log,
    and children would print into it; so the descriptor is taken if it is still free.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        null = os.open(os.devnull, os.O_RDWR)
        if _is_free(number):
            os.dup2(null, number)
            os.close(null)
            null = number
        elif null == number:
            os.set_inheritable(number, True)
        mode = "r" if name == "stdin" else "w"
        setattr(sys, name, open(null, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - of the whole process


def _is_free(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return True
    return False


def echo(text: str) -> None:
    """Print one line to standard error; a closed standard error is not an error."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def set_quiet(quiet: bool) -> None:
    """Leave out progress and notes on standard error from now on, or print them again."""
    global _quiet
    _quiet = quiet


@contextlib.contextmanager
def events_printed(wanted: bool) -> Iterator[None]:
    """Print walkit's events to standard error in the block, if that is wanted."""
    logger, handler = logging.getLogger("walkit"), logging.StreamHandler()
    level = logger.level
    if wanted:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def note(text: str) -> None:
    """Print one line of information to standard error: -q leaves it out."""
    if not _quiet:
        echo(text)


def progress_shown() -> bool:
    """Whether progress belongs on standard error: it is a terminal, and -q was not given."""
    return sys.stderr.isatty() and not _quiet


def for_a_terminal(lines: Iterable[str]) -> Iterable[str]:
    """Return a report's lines as they are; for a terminal as wide as it is, and in colour unless NO_COLOR is set."""
    if not sys.stdout.isatty():
        return lines
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    width = shutil.get_terminal_size().columns
    return [_painted(part, plain) for line in lines for part in _folded(line, width)]


def _folded(line: str, width: int) -> list[str]:
    """Return a line as lines of at most `width` characters, cut between words; the later ones are indented."""
    if len(line) <= width:
        return [line]
    inset = len(line) - len(line.lstrip()) + 4
    return textwrap.wrap(line, width, subsequent_indent=" " * inset, drop_whitespace=False)


def _painted(line: str, plain: bool) -> str:
    for colour, pattern in () if plain else COLOURS.items():
        line = re.sub(pattern, rf"\033[{colour}m\g<0>\033[0m", line, count=1)
    return line


class _TextSink(io.BufferedIOBase):
    """Standard output that takes only text, as in a notebook."""

    def write(self, data: Any) -> int:
        sys.stdout.write(bytes(data).decode())
        return len(data)

    def flush(self) -> None:
        sys.stdout.flush()


def standard_output() -> BinaryIO:
    """Return standard output as a place for UTF-8 bytes, in any locale."""
    sys.stdout.flush()
    return getattr(sys.stdout, "buffer", None) or cast("BinaryIO", _TextSink())


def print_lines(lines: Iterable[str]) -> None:
    """Print lines to standard output; a reader that has gone away ends the printing and nothing else."""
    sink = standard_output()
    try:
        _write_lines(sink, lines)
        sink.flush()
    except BrokenPipeError:
        settle_stdout()


def _write_lines(sink: BinaryIO, lines: Iterable[str]) -> None:
    sink.writelines(line.encode("utf-8", "backslashreplace") + b"\n" for line in lines)


def settle_stdout() -> None:
    """Where standard output takes no more, keep the interpreter from failing when it flushes it at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        drop_stdout()


def drop_stdout() -> None:
    """Let what standard output still holds go nowhere, unless a person looks at it."""
    with contextlib.suppress(OSError, ValueError):
        if not sys.stdout.isatty():
            number = sys.stdout.fileno()
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, number)
            os.close(null)


def json_text(value: Any, indent: int | None = 2) -> str:
    """Return JSON in ASCII that every reader of JSON takes as it is meant.

    Numbers that JSON does not have (NaN, infinities) become null. Ids become 16 hexadecimal digits: most readers have
    numbers of 53 bits, and an id has 64.
    """
    return json.dumps(_portable(value), indent=indent, allow_nan=False)


def _portable(value: Any, name: object = None) -> Any:
    if isinstance(value, dict):
        return {key: _portable(item, key) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(item, name) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    is_id = isinstance(name, str) and name.endswith(("_id", "_ids")) and type(value) is int
    return f"{value:016x}" if is_id else value


def publish(
    schema: str,
    args: argparse.Namespace,
    lines: Callable[[], Iterable[str]],
    plain: Callable[[], dict[str, Any]],
) -> None:
    """Print a report or save it: `--json` prints JSON, `--out` saves; both do both. Each form is made when needed.

    `schema` names what the JSON holds, as docs/output-for-programs.md lists it.
    """
    name = f"walkit.{schema}/{SCHEMA_VERSION}"
    said = [json_text({"schema": name, **plain()})] if args.json else list(lines())
    if args.out is not None:
        with saved(args.out) as sink:
            _write_lines(sink, said)
        note(f"saved as {args.out}")
    if args.out is None or args.json:
        print_lines(said if args.json else for_a_terminal(said))


@contextlib.contextmanager
def saved(path: str, *, keep: tuple[type[BaseException], ...] = ()) -> Iterator[BinaryIO]:
    """Open a file that appears under its name only when it is whole, over what is there.

    Where the block raises one of `keep`, what was written stays all the same. A device or a pipe is written directly.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as direct:
            yield direct
        return
    target = os.path.realpath(path)
    partial = f"{target}.partial"
    try:
        with open(partial, "wb") as sink:
            try:
                yield sink
            except keep:
                sink.flush()
                os.replace(partial, target)
                raise
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):  # what is raised is the first error
            os.unlink(partial)
        raise


@contextlib.contextmanager
def bar(title: str, unit: str = "B") -> Iterator[Bar | None]:
    """Show progress on standard error on a terminal; None elsewhere."""
    if not progress_shown():
        yield None
        return
    from tqdm import tqdm

    with tqdm(desc=title, unit=unit, unit_scale=True, leave=False, delay=0.5) as shown:

        def move(done: int, total: int) -> None:
            shown.total = total
            shown.update(done - shown.n)

        yield move
