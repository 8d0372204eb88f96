"""The `walkit` command: `walkit.cli:main` is its entry point.

Exit codes: 0 fine; 1 found a problem; 2 bad arguments; 3 could not run; 130 interrupted. A command imports its packages
when it runs, so that `walkit --help` stays fast.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from walkit.cli.arguments import parse
from walkit.cli.interrupts import interrupts_kept
from walkit.cli.output import drop_stdout, echo, events_printed, open_streams, set_quiet, settle_stdout
from walkit.cli.usage import UsageError
from walkit.errors import CorruptionError, OptionsError, PayloadGoneError, WalkitError

__all__ = ["main"]

FINE, FOUND, USAGE, FAILED, INTERRUPTED = 0, 1, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` is what follows the command's name. Never raises."""
    open_streams()
    try:
        args = parse(argv)
    except SystemExit as end:  # argparse has printed its help or its complaint
        return end.code if isinstance(end.code, int) else USAGE
    set_quiet(args.quiet)
    try:
        with interrupts_kept(), events_printed(args.verbose):
            code: int = args.run(args)
    except BrokenPipeError:
        settle_stdout()
        return FINE
    except KeyboardInterrupt:
        drop_stdout()  # a reader that has stopped reading would keep the last flush waiting
        echo("interrupted")
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - every failure has an exit code, and a traceback only if it helps
        expected = isinstance(error, WalkitError | UsageError | OSError)
        if args.debug or not expected:
            traceback.print_exc()
        echo(f"walkit {args.command}: {_error_text(error)}")
        settle_stdout()
        return _code_of(error)
    return code


def _error_text(error: Exception) -> str:
    """Return what an error says; of the system's errors the file and the reason, without the number."""
    if (
        isinstance(error, OSError)
        and not isinstance(error, WalkitError)
        and error.strerror
        and error.filename
    ):
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _code_of(error: Exception) -> int:
    if isinstance(error, CorruptionError | PayloadGoneError):
        return FOUND
    return USAGE if isinstance(error, UsageError | OptionsError) else FAILED
