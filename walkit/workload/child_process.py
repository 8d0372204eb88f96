"""The role of a writer that may be killed. Its parent's side is `child`.

Before a writer submits, its claim is in the pipe: the child announces group by group how far each writer may go,
and no writer passes what was announced in a line that was written whole. So a parent that kills the child knows two
exact sets: the acknowledged operations, and the possibly submitted ones.
"""

from __future__ import annotations

import base64
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
from walkit.workload.operations import OperationStream
from walkit.workload.role import LineReporter
from walkit.workload.spec import OpenLoop
from walkit.workload.stream_ipc import stream_from_ipc

LINE_S = 0.02
"""Time between two lines."""
WINDOW_GROUPS = 4096
"""Groups that may be announced and not acknowledged, all writers together."""
WINDOWS_PER_STREAM = 8
"""A short stream has a smaller window, so that it takes at least so many lines."""


def plain_options(options: LogOptions) -> dict[str, Any]:
    """Return the options that are not the default, as JSON can hold them."""
    given = {f.name: getattr(options, f.name) for f in fields(options)}
    default = LogOptions()
    changed = {name: value for name, value in given.items() if value != getattr(default, name)}
    return {name: asdict(v) if isinstance(v, Retention) else v for name, v in changed.items()}


def options_from(plain: dict[str, Any]) -> LogOptions:
    """Return options that `plain_options` made plain."""
    retention = {"retention": Retention(**plain["retention"])} if "retention" in plain else {}
    return LogOptions(**{**plain, **retention})


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


def drive(
    lines: LineReporter,
    path: str,
    writers: int,
    options: dict[str, Any],
    arrival: dict[str, Any] | None,
    seed: int,
    preloaded: bool,
) -> None:
    """Drive the operations on standard input into the Store at `path`; with `preloaded`, puts to make first follow."""
    stream = stream_from_ipc(sys.stdin.buffer)
    preload = stream_from_ipc(sys.stdin.buffer) if preloaded else None
    lines.leash()
    with Store.open(path, options=options_from(options)) as store:
        if preload is not None:
            store.put_many(preload.keys, preload.values)
        drive_reported(store, stream, writers, lines, OpenLoop(**arrival) if arrival else None, seed)
