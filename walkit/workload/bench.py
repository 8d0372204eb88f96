"""`walkit bench write`: how many records a second, by how many ways in, beside the raw device in the same run.

Every way in gets a log of its own and the same records: a value, no key. Its first segment is there, and the way has
been going for a while, before a record counts. What counts is what was acknowledged within the time measured, by the
clock readings of the callers themselves. The raw loop runs just before and just after, so that drift shows.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter, perf_counter_ns
from typing import Any, Literal

import numpy as np

from walkit.config import LogOptions
from walkit.errors import OptionsError
from walkit.log.opening import open_log
from walkit.log.wal import WriteAheadLog
from walkit.measure import LatencyHistogram, MachineFacts, ThreadRecorder, raw_baseline
from walkit.metrics import LogStatistics
from walkit.workload.benchreport import BenchReport, BenchRow
from walkit.workload.progress import progress_bar

__all__ = ["BenchReport", "BenchRow", "bench_write"]

RECORDS_PER_CALL = 100_000
"""Records of one call of append_many."""
SUBMITS_PER_SAMPLE = 100
"""One of so many submitted records is timed."""
WARM_UP_SHARE = 0.1
"""Time before what is measured, as a share of it."""
RAW_S_MIN = 0.2


def _row(
    way: str,
    callers: int,
    recorders: list[ThreadRecorder],
    marks: tuple[tuple[int, LogStatistics], tuple[int, LogStatistics]],
    latency_of: str,
    records: int | None = None,
) -> BenchRow:
    """Make a row of what was acknowledged between two marks: (time in ns, the log's metrics).

    `records` says how many there were, where the samples are not of all.
    """
    (start_ns, before), (end_ns, after) = marks
    began, ended, counts = np.concatenate([np.stack(r.samples()) for r in recorders], axis=1)
    inside = (ended > start_ns) & (ended <= end_ns)
    histogram = LatencyHistogram.from_samples((ended - began)[inside])
    frames = after.frames_written - after.marks_written - before.frames_written + before.marks_written
    return BenchRow(
        way=way,
        callers=callers,
        records=int(counts[inside].sum()) if records is None else records,
        seconds=(end_ns - start_ns) / 1e9,
        p50_us=histogram.percentile(50) / 1000,
        p99_us=histogram.percentile(99) / 1000,
        latency_of=latency_of,
        frames=frames,
        records_per_frame=(after.records_acked - before.records_acked) / frames if frames else None,
    )


def _mark(log: WriteAheadLog) -> tuple[int, LogStatistics]:
    found = log.statistics()
    return perf_counter_ns(), found


def _raw(folder: str, block_bytes: int, seconds: float) -> BenchRow:
    baseline = raw_baseline(folder, block_bytes=block_bytes, seconds=max(seconds / 4, RAW_S_MIN))
    latencies = baseline.latencies
    return BenchRow(
        way="raw",
        callers=1,
        records=latencies.count,
        seconds=baseline.duration_s,
        p50_us=latencies.percentile(50) / 1000,
        p99_us=latencies.percentile(99) / 1000,
        latency_of="a write",
        raw_per_s=baseline.writes_per_s,
    )


def _threads(log: WriteAheadLog, callers: int, value: bytes, seconds: float) -> BenchRow:
    """`append` by threads, each waiting for its acknowledgement before the next."""
    recorders = [ThreadRecorder() for _ in range(callers)]
    stop, errors = threading.Event(), list[BaseException]()

    def write(record: Callable[[int, int], None]) -> None:
        stopped, append, now = stop.is_set, log.append, perf_counter_ns
        try:
            while not stopped():
                began = now()
                append(value)
                record(began, now())
        except BaseException as error:  # noqa: BLE001 - raised below, by who started the thread
            errors.append(error)
            stop.set()

    threads = [
        threading.Thread(target=write, args=(r.record,), name=f"bench-{i}", daemon=True)
        for i, r in enumerate(recorders)
    ]
    try:
        for thread in threads:
            thread.start()
        stop.wait(seconds * WARM_UP_SHARE)
        start = _mark(log)
        stop.wait(seconds)
        end = _mark(log)
    finally:
        stop.set()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return _row("append", callers, recorders, (start, end), "a record")


def _tasks(log: WriteAheadLog, callers: int, value: bytes, seconds: float) -> BenchRow:
    """`append_async` by tasks of one event loop, which runs on a thread of its own."""
    recorder, stop = ThreadRecorder(), threading.Event()

    async def write() -> None:
        stopped, record, now = stop.is_set, recorder.record, perf_counter_ns
        while not stopped():
            began = now()
            await log.append_async(value)
            record(began, now())

    async def measure() -> BenchRow:
        tasks = [asyncio.create_task(write()) for _ in range(callers)]
        await asyncio.wait(tasks, timeout=seconds * WARM_UP_SHARE, return_when=asyncio.FIRST_EXCEPTION)
        start = _mark(log)
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        end = _mark(log)
        stop.set()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        return _row("append_async", callers, [recorder], (start, end), "a record")

    with ThreadPoolExecutor(1, "bench-loop") as pool:
        try:
            return pool.submit(_run_on_a_loop, measure).result()
        finally:
            stop.set()


def _on_a_thread(name: str, measure: Callable[[], BenchRow]) -> BenchRow:
    """Measure beside the main thread, which holds interrupts back for each call."""
    with ThreadPoolExecutor(1, name) as pool:
        return pool.submit(measure).result()


def _run_on_a_loop(measure: Callable[[], Any]) -> BenchRow:
    loop = asyncio.new_event_loop()
    try:
        row: BenchRow = loop.run_until_complete(measure())
        return row
    finally:
        loop.close()


def _submit(log: WriteAheadLog, value: bytes, seconds: float) -> BenchRow:
    """`submit` by one thread that never waits for an acknowledgement, until the last one is there."""
    recorder, submit, now = ThreadRecorder(), log.submit, perf_counter_ns

    def told_of(at_ns: int) -> Callable[[object], None]:
        # Callbacks run on one thread: it alone records.
        return lambda _: recorder.record(at_ns, now())

    def some(until: float) -> int:
        count = 0
        while perf_counter() < until:
            for _ in range(SUBMITS_PER_SAMPLE - 1):
                submit(value)
            at_ns = now()
            submit(value).add_done_callback(told_of(at_ns))
            count += SUBMITS_PER_SAMPLE
        told = threading.Event()
        last = submit(value)
        last.add_done_callback(lambda _: told.set())
        last.result()
        told.wait()
        return count + 1

    some(perf_counter() + seconds * WARM_UP_SHARE)
    start = _mark(log)
    records = some(perf_counter() + seconds)
    end = _mark(log)
    what = f"every {SUBMITS_PER_SAMPLE}th record, to its callback: mostly its time in the queue"
    return _row("submit", 1, [recorder], (start, end), what, records)


def _many(log: WriteAheadLog, value: bytes, seconds: float) -> BenchRow:
    """`append_many` by one thread, whole calls."""
    values, recorder = [value] * RECORDS_PER_CALL, ThreadRecorder()
    log.append_many(values)
    start = _mark(log)
    until = perf_counter() + seconds
    while perf_counter() < until:
        began = perf_counter_ns()
        log.append_many(values)
        recorder.record(began, perf_counter_ns(), len(values))
    end = _mark(log)
    return _row("append_many", 1, [recorder], (start, end), f"a call with {len(values):,} records")


def _check(writers: list[int], tasks: list[int], record_bytes: int, seconds: float, path: str | None) -> None:
    for name, counts in (("writers", writers), ("tasks", tasks)):
        if any(count < 1 for count in counts):
            raise OptionsError(f"{name}={counts}: whole numbers from 1 on", option=name, wanted=counts)
    if record_bytes < 1:
        raise OptionsError(
            f"record_bytes={record_bytes}: at least 1", option="record_bytes", wanted=record_bytes
        )
    if not seconds > 0:
        raise OptionsError(f"seconds={seconds}: more than 0", option="seconds", wanted=seconds)
    if path is not None and not os.path.isdir(path):
        raise OptionsError(
            f"{path} is not a folder; give one on the device to measure", option="path", wanted=path
        )


def bench_write(
    *,
    writers: list[int],
    tasks: list[int],
    record_bytes: int = 100,
    seconds: float = 2.0,
    path: str | None = None,
    durability: Literal["sync", "interval", "none"] = "sync",
    progress: bool = True,
) -> BenchReport:
    """Measure every way in, one after the other, each on a fresh log, with the raw loop before, between and after.

    `path` is a folder on the device to measure (default: the folder for temporary files); nothing is left in it. Each
    way takes `seconds`, and some before them that do not count. Compare rows of one report with each other, not with
    another report: machines drift. Raises OptionsError, and what the log raises.
    """
    _check(writers, tasks, record_bytes, seconds, path)
    options = LogOptions(durability=durability)
    value = os.urandom(record_bytes)
    ways: list[Callable[[WriteAheadLog], BenchRow]] = [
        *(_with(_threads, n, value, seconds) for n in writers),
        *(_with(_tasks, n, value, seconds) for n in tasks),
        lambda log: _on_a_thread("bench-submit", lambda: _submit(log, value, seconds)),
        lambda log: _many(log, value, seconds),
    ]
    folder = tempfile.mkdtemp(prefix="walkit-bench-", dir=path)
    try:
        machine = MachineFacts.here(folder)
        block_bytes = _frame_bytes(os.path.join(folder, "one"), options, value)
        rows = [_raw(folder, block_bytes, seconds)]
        with progress_bar("bench write", len(ways), unit="ways", show=progress) as bar:
            for way in ways:
                row = _measure(os.path.join(folder, "log"), options, value, way)
                after = _raw(folder, block_bytes, seconds)
                raw_per_s = (rows[-1].raw_per_s + after.raw_per_s) / 2
                rows += [replace(row, raw_per_s=raw_per_s), after]
                bar.update(1)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return BenchReport(
        record_bytes=record_bytes,
        durability=durability,
        location=os.path.dirname(folder),
        raw_block_bytes=block_bytes,
        machine=machine,
        rows=tuple(rows),
    )


def _with(
    way: Callable[[WriteAheadLog, int, bytes, float], BenchRow], callers: int, value: bytes, seconds: float
) -> Callable[[WriteAheadLog], BenchRow]:
    return lambda log: way(log, callers, value, seconds)


def _measure(
    path: str, options: LogOptions, value: bytes, way: Callable[[WriteAheadLog], BenchRow]
) -> BenchRow:
    with open_log(path, "x", options) as log:
        log.append(value)  # makes the first segment
        row = way(log)
    shutil.rmtree(path)
    return row


def _frame_bytes(path: str, options: LogOptions, value: bytes) -> int:
    """Return the bytes of a frame with one record."""
    with open_log(path, "x", options) as log:
        log.append(value)
        size = log.statistics().frame_bytes
    shutil.rmtree(path)
    return size
