"""The drivers: a workload into a log or a Store, by threads or tasks, in a closed or an open loop, and a Run of it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns

import numpy as np

from walkit._internal.arguments import check_bool, check_kind, refuse
from walkit._internal.progress import progress_bar
from walkit._internal.text import counted
from walkit.errors import StorageError
from walkit.log.wal import WriteAheadLog
from walkit.measure import Baseline, FrameSummary, LatencyHistogram, Run, RunRecorder, raw_baseline
from walkit.measure.frame_timer import FrameWatch, split_latency
from walkit.measure.recorder import publishing
from walkit.metrics import LogStatistics
from walkit.record import Kind
from walkit.store import Store
from walkit.workload.operations import READ, OperationStream
from walkit.workload.spec import OpenLoop, Workload
from walkit.workload.tasks import TaskWriters, require_task_operations
from walkit.workload.writers import Due, Writers, no_reads

__all__ = ["Workload", "Writers", "drive", "finish_run", "kinds_done", "progress_ticks", "with_run"]

DELETE = int(Kind.DELETE)
PROGRESS_S = 0.1
BASELINE_S = 0.2
BASELINE_BLOCK_BYTES = 4096
"""Bytes of a raw write where the run wrote no frame."""


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
    baseline: Baseline | bool | None = True,
    stream: OperationStream | None = None,
) -> Run:
    """Drive a workload into a log or a Store and return the Run; blocks until all is acknowledged.

    Interrupting (Ctrl-C, a stopped cell) lets each writer finish its group: the Run is marked `interrupted`, and
    the log is as usable as before. An error ends the run and is raised: records acknowledged until then are in the log,
    and the Run of that part, with its `failure`, is the error's attribute `run`. `stream` gives the workload's
    operations if they have been made already. The Run holds the log's events of this time. Records that others write
    meanwhile count in the Run's bytes, frames and syncs only. A log in a folder gets a raw baseline of equal frames
    right after the run, unless `baseline` is one, False or None.

    OptionsError for reads of a log, and operations that tasks cannot do: nothing was written. Warns without a baseline.
    """
    check_bool(progress, "progress")
    workload = Workload() if workload is None else workload
    _require_right(target, workload)
    operations = workload.stream() if stream is None else stream
    log = target if isinstance(target, WriteAheadLog) else target.log
    _require_possible(target, workload, operations)
    _preload(target, workload)
    parts = operations.route(workload.callers)
    due = due_times(workload, operations, parts)
    recorder = _recorder_of(target, log, workload, operations, due)
    kind = TaskWriters if workload.tasks else Writers
    writers = kind(target, parts, recorder, due=due)
    interrupted = False
    before = log.statistics()
    log.events.add_listener(recorder.event)
    watch = FrameWatch(log)
    try:
        with watch, publishing(log, recorder):
            writers.start()
            total = len(operations)
            for _ in progress_ticks(writers, lambda: _done(recorder), total, workload.name, progress):
                pass
    except BaseException as error:
        writers.stop()
        writers.wait()
        if not isinstance(error, KeyboardInterrupt):
            raise
        interrupted = True
    finally:
        end_ns = perf_counter_ns()
        log.events.remove_listener(recorder.event)
    failure = writers.errors[0] if writers.errors else None
    after = log.statistics()
    frames = watch.summary(after.padding_bytes - before.padding_bytes)
    if baseline is True and not interrupted and failure is None:
        baseline, interrupted = _baseline_of(log, frames)
    run = finish_run(
        recorder,
        before,
        after,
        operations=kinds_done(parts, writers.done),
        end_ns=end_ns,
        baseline=None if isinstance(baseline, bool) else baseline,
        interrupted=interrupted,
        failure=failure,
        frames=frames,
        latency=frame_latency(watch, writers, recorder, end_ns),
    )
    if failure is not None:
        raise with_run(failure, run)
    return run


def _require_right(target: object, workload: object) -> None:
    """Raise OptionsError for an argument that is not a workload, or one that cannot be driven."""
    if not isinstance(target, WriteAheadLog | Store):
        refuse("target", target, "an open log or a Store")
    check_kind(workload, Workload, "workload", or_none=False)


def _require_possible(target: WriteAheadLog | Store, workload: Workload, operations: OperationStream) -> None:
    if isinstance(target, WriteAheadLog) and bool((operations.kinds == READ).any()):
        no_reads(b"")
    if workload.tasks:
        require_task_operations(operations)


def _preload(target: WriteAheadLog | Store, workload: Workload) -> None:
    """Put every key, in as few frames as they fit, before anything is measured."""
    stream = workload.preload_stream()
    if stream is None:
        return
    if isinstance(target, WriteAheadLog):
        target.append_many(stream.values, stream.keys)
    else:
        target.put_many(stream.keys, stream.values)


def _path_of(log: WriteAheadLog) -> str | None:
    return log.location if "://" not in log.location else None


def _recorder_of(
    target: WriteAheadLog | Store,
    log: WriteAheadLog,
    workload: Workload,
    operations: OperationStream,
    due: Sequence[Due] | None,
) -> RunRecorder:
    options = {**log.options.as_dict(), "operations": len(operations), "workload": workload.as_dict()}
    if due is not None:
        options["due_s"] = max((part[-1] for part in due if part), default=0) / 1e9
    return RunRecorder(
        workload.name,
        durability=log.options.durability,
        path=_path_of(log),
        seed=workload.seed if workload.generated or workload.arrival != "closed" else None,
        options=options,
        labels=_labels(target, workload),
        arrival="closed" if workload.arrival == "closed" else "open",
    )


def _baseline_of(log: WriteAheadLog, frames: FrameSummary) -> tuple[Baseline | None, bool]:
    """Return a raw baseline of equal frames in the log's own folder, and whether measuring it was interrupted."""
    path = _path_of(log)
    block_bytes = int(frames.bytes_mean) if frames.frames else BASELINE_BLOCK_BYTES
    try:
        found = None if path is None else raw_baseline(path, block_bytes=block_bytes, seconds=BASELINE_S)
    except StorageError as error:  # a full disk, mostly: the run is worth more than its baseline
        warnings.warn(f"the Run has no raw baseline: {error}", RuntimeWarning, stacklevel=3)
        return None, False
    except KeyboardInterrupt:
        return None, True
    return found, False


def _labels(target: WriteAheadLog | Store, workload: Workload) -> dict[str, object]:
    callers = {"tasks": workload.tasks} if workload.tasks else {"writers": workload.writers}
    labels: dict[str, object] = {**callers, "target": type(target).__name__}
    if isinstance(workload.arrival, OpenLoop):
        labels |= {"offered_per_s": workload.arrival.rate, "process": workload.arrival.process}
    return labels


def _done(recorder: RunRecorder) -> int:
    return recorder.records_so_far() + recorder.records_so_far("read")


def due_times(
    workload: Workload, operations: OperationStream, parts: Sequence[OperationStream]
) -> list[Due] | None:
    """Return when each group of each part is meant to begin, ns from the start; None in a closed loop."""
    if not isinstance(workload.arrival, OpenLoop):
        return None
    groups = np.unique(operations.groups)
    due = workload.arrival.due_ns(len(groups), workload.seed)
    return [due[np.searchsorted(groups, np.unique(part.groups))].tolist() for part in parts]


def frame_latency(
    watch: FrameWatch, writers: Writers, recorder: RunRecorder, end_ns: int
) -> dict[str, LatencyHistogram]:
    """Return the histograms "queue", "write", "sync" and "callback" of the calls that ended within the run.

    queue: from the begin of a call, in an open loop the intended one, to the write of its frame; write: that, with its
    sync if it has one; callback: from there until the caller continues. "sync" has the syncs made apart.
    """
    rows = [np.stack(t.samples()) for t in recorder.named("total")]
    # A thread that still runs after an interrupt may have noted an LSN and not yet its times.
    lsns = [np.array(told, np.int64)[: part.shape[1]] for told, part in zip(writers.lsns, rows, strict=True)]
    began, ended, records = np.concatenate([np.empty((3, 0), np.int64), *rows], axis=1)
    last_lsn = np.concatenate([np.empty(0, np.int64), *lsns])
    inside = (ended >= recorder.start_ns) & (ended <= end_ns)
    split = split_latency(watch.frames(), began[inside], ended[inside], last_lsn[inside], records[inside])
    return {name: found for name, found in {**split, "sync": watch.sync_latency()}.items() if found.count}


def with_run(error: BaseException, run: Run) -> BaseException:
    """Return the error that ended a run, with the Run of the part before it as its attribute `run`."""
    error.run = run  # type: ignore[attr-defined]  # which errors a target raises is not known here
    error.add_note(
        f"acknowledged before: {counted(run.records, 'record')}; the Run is the error's attribute `run`"
    )
    return error


def kinds_done(parts: Sequence[OperationStream], groups: Sequence[int]) -> dict[str, int]:
    """Count the operations in the first `groups[i]` groups of `parts[i]` by kind; reads only if there are any."""
    counts = {"put": 0, "delete": 0}
    for part, done in zip(parts, groups, strict=True):
        kinds = part.kinds[: len(part.numbers_of(done))]
        deletes, reads = int((kinds == DELETE).sum()), int((kinds == READ).sum())
        counts["delete"] += deletes
        counts["put"] += len(kinds) - deletes - reads
        if reads:
            counts["read"] = counts.get("read", 0) + reads
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
    frames: FrameSummary | None = None,
    latency: Mapping[str, LatencyHistogram] | None = None,
) -> Run:
    """Make the Run from the threads' records and the change of the log's metrics.

    `frames` and `latency` are those of single frames, if they were observed.
    """
    written = FrameSummary.between(before, after)
    return recorder.finish(
        operations=operations,
        bytes_user=after.user_bytes - before.user_bytes,
        bytes_written=written.frame_bytes,
        syncs=after.syncs - before.syncs,
        frames=frames or written,
        baseline=baseline,
        interrupted=interrupted,
        latency=latency,
        failure=None if failure is None else f"{type(failure).__name__}: {failure}",
        end_ns=end_ns,
    )
