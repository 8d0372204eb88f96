"""The child's end of the protocol whose parent's end is `process.TalkingChild`: whole JSON lines on standard output.

A line is an object. One with the key "error" is the last, and has the reason for the child's end; all others are the
program's own. Standard input is the parent's: see `parent_watch`.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import asdict
from time import perf_counter_ns
from typing import IO, Any

from walkit.errors import WalkitError
from walkit.log.wal import WriteAheadLog
from walkit.measure.run import plain
from walkit.workload.parent_watch import ORPHANED


class LineReporter:
    """Writes lines, each whole; keeps a log's events for the next line. `write` is for one thread, `event` for any."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._log: WriteAheadLog | None = None
        self._events: deque[tuple[int, str, Any]] = deque()

    def follow(self, log: WriteAheadLog) -> None:
        """Put the statistics of this log into every line from now on, and keep its events for `take_events`."""
        self._log = log
        log.events.add_listener(self.event)

    def event(self, name: str, attributes: dict[str, Any]) -> None:
        """Keep an event, with its time on the machine's monotonic clock."""
        self._events.append((perf_counter_ns(), name, plain(attributes)))

    def take_events(self) -> list[tuple[int, str, Any]]:
        """Return the events since the last call: (time in ns, name, attributes)."""
        return taken(self._events)

    def write(self, **values: Any) -> None:
        """Write one line, whole. BrokenPipeError if the parent no longer reads."""
        if self._log is not None:
            values["statistics"] = asdict(self._log.statistics())
        self._out.write(json.dumps(values) + "\n")
        self._out.flush()


def taken(queue: deque[Any]) -> list[Any]:
    """Take the queue's items; others may append meanwhile."""
    return [queue.popleft() for _ in range(len(queue))]


def report_lines(
    work: Callable[[LineReporter], object], errors: tuple[type[Exception], ...] = (WalkitError, OSError)
) -> int:
    """Run `work(reporter)` with standard output for its lines alone; return the exit status of the child.

    A library's output goes to standard error meanwhile. Of `errors` the parent gets a line, and 1 is returned; any
    other is raised. If the parent no longer reads, the process ends at once, as if it had been killed.
    """
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        work(LineReporter(out))
    except BrokenPipeError:
        os._exit(ORPHANED)
    except errors as error:
        LineReporter(out).write(error=f"{type(error).__name__}: {error}")
        return 1
    finally:
        sys.stdout = out
    return 0
