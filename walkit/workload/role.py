"""The child's end of the one protocol of child processes: `python -m walkit.workload MODULE:FUNCTION ARGUMENTS`.

The function is the role of the child. It gets a `LineReporter`, and ARGUMENTS, which is JSON, by name. Standard output
is for whole JSON lines: one with the key "error" is the last and has the reason for the child's end, all others are the
role's own. Standard input is from the parent: bytes that the role reads first, then the leash. The line "stop" in it
asks for the end; its own end means that the parent is gone, and ends the process at once, as if it had been killed.
The parent's end of the protocol is `process.TalkingChild`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections import deque
from dataclasses import asdict
from importlib import import_module
from time import perf_counter_ns
from typing import IO, Any

from walkit.errors import WalkitError
from walkit.log.wal import WriteAheadLog
from walkit.measure.run import plain

ORPHANED = 3
"""Exit status of a child whose parent has gone."""


class LineReporter:
    """Writes lines, each whole; keeps a log's events for the next line. `write` is for one thread, `event` for any."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out
        self._log: WriteAheadLog | None = None
        self._events: deque[tuple[int, str, Any]] = deque()

    def leash(self) -> threading.Event:
        """Watch standard input from now on; return the event that the parent sets by the line "stop"."""
        stop, parent_fd = threading.Event(), sys.stdin.fileno()

        def watch() -> None:
            # Below Python's buffer: a thread that holds its lock when the interpreter ends would be a fatal error.
            heard = b""
            while part := os.read(parent_fd, 4096):
                heard = (heard + part)[-16:]
                if b"stop\n" in heard:
                    stop.set()
            os._exit(ORPHANED)

        threading.Thread(target=watch, name="parent", daemon=True).start()
        return stop

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


def main() -> int:
    """Play the role that the command line names; return the exit status of the child.

    A library's output goes to standard error meanwhile. Of walkit's errors and the system's the parent gets a line; any
    other is raised. If the parent no longer reads, the process ends at once.
    """
    role, arguments = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which decides
    lines, sys.stdout = LineReporter(sys.stdout), sys.stderr
    module, _, function = role.partition(":")
    try:
        getattr(import_module(module), function)(lines, **json.loads(arguments))
    except BrokenPipeError:
        os._exit(ORPHANED)
    except (WalkitError, OSError) as error:
        lines.write(error=f"{type(error).__name__}: {error}")
        return 1
    return 0
