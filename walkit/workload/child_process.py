"""The child's side of a writer that may be killed: `python -m walkit.workload`. Its parent's side is `child`.

Before a writer submits, its claim is in the pipe: the child announces group by group how far each writer may go,
and no writer passes what was announced in a line that was written whole. So a parent that kills the child knows two
exact sets: the acknowledged operations, and the possibly submitted ones.

A child with `--operations-on-stdin` belongs to its parent: when standard input ends, or the lines are not read any
more, it ends at once, as if it had been killed. A log is made for that.
"""

from __future__ import annotations

import argparse
import base64
import json
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from walkit.config import LogOptions, Retention
from walkit.measure import RunRecorder
from walkit.measure.recorder import ThreadRecorder
from walkit.store import Store
from walkit.workload.drive import Workload, Writers, due_times
from walkit.workload.line_reporter import LineReporter, report_lines
from walkit.workload.operations import OperationStream
from walkit.workload.parent_watch import end_with
from walkit.workload.spec import OpenLoop
from walkit.workload.stream_ipc import stream_from_ipc

LINE_S = 0.02
"""Time between two lines."""
WINDOW_GROUPS = 4096
"""Groups that may be announced and not acknowledged, all writers together."""
WINDOWS_PER_STREAM = 8
"""A short stream has a smaller window, so that it takes at least so many lines."""


def options_text(options: LogOptions) -> str:
    """Return the options that are not the default, as JSON for the command line."""
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    default = LogOptions()
    changed = {name: value for name, value in given.items() if value != getattr(default, name)}
    return json.dumps({name: asdict(v) if isinstance(v, Retention) else v for name, v in changed.items()})


def options_from(text: str) -> LogOptions:
    """Return options that `options_text` wrote."""
    given: dict[str, Any] = json.loads(text)
    if "retention" in given:
        given["retention"] = Retention(**given["retention"])
    return LogOptions(**given)


def arrival_from(text: str) -> OpenLoop:
    """Return the OpenLoop of its fields as JSON."""
    return OpenLoop(**json.loads(text))


class Announcer:
    """Holds writers back until their next operations have been announced."""

    def __init__(self, writers: int) -> None:
        self._announced = [0] * writers
        self._changed = threading.Condition()

    def may_begin(self, writer: int, group: int) -> bool:
        """Wait until `group` of this writer has been announced; then True."""
        if group >= self._announced[writer]:
            with self._changed:
                self._changed.wait_for(lambda: group < self._announced[writer])
        return True

    def announce(self, bounds: list[int]) -> None:
        """Let writers go up to these bounds, which are in the pipe by now."""
        with self._changed:
            self._announced = bounds
            self._changed.notify_all()


class GroupReporter:
    """Makes the lines: acknowledged, announced and measured since the line before."""

    def __init__(self, lines: LineReporter, recorder: RunRecorder, window: int) -> None:
        self._lines = lines
        self._threads: Sequence[ThreadRecorder] = recorder.threads
        self._acked = [0] * len(self._threads)
        self._window = window

    def report(self) -> list[int]:
        """Write a line, and return the bounds that were announced with it."""
        # A group is one sample, taken when it was acknowledged: both sides count the same thing.
        rows = [np.stack(t.samples(known)) for t, known in zip(self._threads, self._acked, strict=True)]
        self._acked = [known + part.shape[1] for known, part in zip(self._acked, rows, strict=True)]
        bounds = [acked + self._window for acked in self._acked]
        samples = base64.b64encode(np.concatenate(rows, axis=1).astype("<i8").tobytes()).decode()
        self._lines.write(
            acked=self._acked, announced=bounds, samples=samples, events=self._lines.take_events()
        )
        return bounds


def drive_reported(
    store: Store,
    stream: OperationStream,
    writer_count: int,
    lines: LineReporter,
    arrival: OpenLoop | None = None,
    seed: int = 0,
) -> None:
    """Drive the stream into the store, with lines to the parent all along. Raises the writers' first error."""
    parts = stream.route(writer_count)
    due = due_times(Workload(arrival=arrival or "closed", seed=seed), stream, parts)
    recorder = RunRecorder("child", durability=store.log.options.durability)
    announcer = Announcer(len(parts))
    writers = Writers(store, parts, recorder, announcer.may_begin, due=due)
    window = min(WINDOW_GROUPS, stream.group_count // WINDOWS_PER_STREAM)
    groups = GroupReporter(lines, recorder, max(window // writer_count, 1))
    lines.follow(store.log)
    lines.write()
    writers.start()
    lines.write(began=recorder.start_ns)
    announcer.announce(groups.report())
    while not writers.wait(LINE_S):
        announcer.announce(groups.report())
    groups.report()
    if writers.errors:
        raise writers.errors[0]


def main(arguments: list[str] | None = None) -> int:
    """Drive operations into the Store at PATH, with JSON lines about it on standard output."""
    parser = argparse.ArgumentParser(prog="python -m walkit.workload", description=main.__doc__)
    parser.add_argument("path", metavar="PATH")
    parser.add_argument(
        "--operations", type=int, default=400_000, help="of the flights (default: %(default)s)"
    )
    parser.add_argument(
        "--operations-on-stdin", action="store_true", help="read them, as a parent sends them"
    )
    parser.add_argument(
        "--preload-on-stdin", action="store_true", help="read puts to make first, after the operations"
    )
    parser.add_argument("--arrival", type=arrival_from, help="OpenLoop as JSON (default: a closed loop)")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals (default: %(default)s)")
    parser.add_argument("--writers", type=int, default=64, help="threads that write (default: %(default)s)")
    parser.add_argument("--options", type=options_from, default=LogOptions(), help="LogOptions as JSON")
    given = parser.parse_args(arguments)
    return report_lines(lambda lines: _drive(given, lines))


def _drive(given: argparse.Namespace, lines: LineReporter) -> None:
    if given.operations_on_stdin:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which decides
        stream = stream_from_ipc(sys.stdin.buffer)
        preload = stream_from_ipc(sys.stdin.buffer) if given.preload_on_stdin else None
        end_with(sys.stdin.fileno())
    else:
        stream, preload = Workload(operations=given.operations, writers=given.writers).stream(), None
    with Store.open(given.path, options=given.options) as store:
        if preload is not None:
            store.put_many(preload.keys, preload.values)
        drive_reported(store, stream, given.writers, lines, given.arrival, given.seed)
