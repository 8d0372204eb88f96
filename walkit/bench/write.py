"""The ways into a log that `walkit bench write` measures, one function each.

Records count if they were acknowledged within the measured time, by the clocks of the callers, after
the way has been going for a while.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import count
from time import perf_counter, perf_counter_ns, process_time
from typing import Any

import numpy as np
import pyarrow as pa

from walkit._internal.text import counted
from walkit.bench.write_report import BenchRow
from walkit.commit.policy import TakeAll
from walkit.commit.ticket import Ticket
from walkit.config import LogOptions
from walkit.log.wal import WriteAheadLog
from walkit.measure import Baseline, LatencyHistogram, ThreadRecorder, raw_baseline
from walkit.metrics import LogStatistics
from walkit.objects.entrance import open_log
from walkit.objects.layout import BULK_HEADER_BYTES
from walkit.objects.requests import Patience, PatientReads, put_own
from walkit.storage.address import FILES, open_store
from walkit.storage.file import DIRECT_BYTES
from walkit.workload.closedloop import WARM_UP_SHARE, appending, drive_threads

Way = Callable[[WriteAheadLog], BenchRow]
RECORDS_PER_CALL = 10_000
"""Records of one call of append_many and append_arrow, if they are small."""
CALL_BYTES_MAX = 16 << 20
SUBMITS_PER_SAMPLE = 100
"""One of this many submitted records is timed."""
AWAITED_PER_SAMPLE = 16
"""One of this many records of a task is timed: two readings of the clock for each would take a seventh of what 64 tasks
make, and one a twelfth."""
RAW_S_MIN = 0.2
CLOSED_WAYS = ("append", "append_async", "tickets")
"""Ways in with as many records under way as they have callers, and at most as many frames in flight."""


def _row(
    way: str,
    callers: int,
    recorders: list[ThreadRecorder],
    marks: tuple[tuple[int, LogStatistics], tuple[int, LogStatistics]],
    latency_of: str,
    records: int | None = None,
) -> BenchRow:
    """Make a row of the records acknowledged between two marks: (time in ns, the log's metrics).

    `records` is their number, if not all have a sample.
    """
    (start_ns, before), (end_ns, after) = marks
    began, ended, counts = np.concatenate([np.stack(r.samples()) for r in recorders], axis=1)
    inside = (ended > start_ns) & (ended <= end_ns)
    histogram = LatencyHistogram.from_samples((ended - began)[inside])
    frames = after.frames_written - after.marker_frames - before.frames_written + before.marker_frames
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
        frame_bytes=(after.frame_bytes - before.frame_bytes) / frames if frames else None,
    )


def _mark(log: WriteAheadLog) -> tuple[int, LogStatistics]:
    found = log.statistics()
    return perf_counter_ns(), found


def _raw(folder: str, block_bytes: int, seconds: float) -> BenchRow:
    baseline = raw_baseline(folder, block_bytes=block_bytes, seconds=max(seconds / 4, RAW_S_MIN))
    return _raw_row("raw", baseline, "a write", raw_per_s=baseline.writes_per_s)


def _raw_row(way: str, baseline: Baseline, latency_of: str, **more: Any) -> BenchRow:
    latencies = baseline.latencies
    return BenchRow(
        way=way,
        callers=baseline.threads,
        records=latencies.count,
        seconds=baseline.duration_s,
        p50_us=latencies.percentile(50) / 1000,
        p99_us=latencies.percentile(99) / 1000,
        latency_of=latency_of,
        **more,
    )


def _threads(log: WriteAheadLog, callers: int, value: bytes, seconds: float) -> BenchRow:
    """`append` by threads, each waiting for its acknowledgement before the next."""
    recorders = [ThreadRecorder() for _ in range(callers)]
    marks = drive_threads(appending(log, value), recorders, seconds, lambda: _mark(log), lambda: _mark(log))
    return _row("append", callers, recorders, marks, "a record")


def _tasks(log: WriteAheadLog, callers: int, value: bytes, seconds: float) -> BenchRow:
    """`append_async` by tasks of one event loop, which runs on another thread."""
    recorder, going = ThreadRecorder(), [True]

    async def write(task: int) -> None:
        append, record, now = log.append_async, recorder.record, perf_counter_ns
        for _ in range(task % AWAITED_PER_SAMPLE):  # not all of them take their times in the same frame
            await append(value)
        while going:
            began = now()
            await append(value)
            record(began, now())
            for _ in range(AWAITED_PER_SAMPLE - 1):
                await append(value)

    async def measure() -> BenchRow:
        tasks = [asyncio.create_task(write(task)) for task in range(callers)]
        await asyncio.wait(tasks, timeout=seconds * WARM_UP_SHARE, return_when=asyncio.FIRST_EXCEPTION)
        start = _mark(log)
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        end = _mark(log)
        going.clear()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        records = end[1].records_acked - start[1].records_acked
        what = f"every {AWAITED_PER_SAMPLE}th record of a task"
        return _row("append_async", callers, [recorder], (start, end), what, records)

    with ThreadPoolExecutor(1, "bench-loop") as pool:
        try:
            return pool.submit(asyncio.run, measure()).result()
        finally:
            going.clear()


def _on_a_thread(name: str, measure: Callable[[], BenchRow]) -> BenchRow:
    """Measure beside the main thread, which holds interrupts back for each call."""
    with ThreadPoolExecutor(1, name) as pool:
        return pool.submit(measure).result()


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


def _outstanding(log: WriteAheadLog, count: int, value: bytes, seconds: float) -> BenchRow:
    """`submit` by one thread that keeps `count` tickets, and waits for the oldest before it submits the next."""
    recorder, submit, now = ThreadRecorder(), log.submit, perf_counter_ns
    record, tickets = recorder.record, deque[tuple[int, Ticket]]()

    def some(until_ns: int) -> None:
        ended = 0
        while ended < until_ns:
            tickets.append((now(), submit(value)))
            if len(tickets) == count:
                began, oldest = tickets.popleft()
                oldest.result()
                ended = now()
                record(began, ended)

    some(now() + int(seconds * WARM_UP_SHARE * 1e9))
    start = _mark(log)
    some(start[0] + int(seconds * 1e9))
    end = _mark(log)
    for _, ticket in tickets:
        ticket.result()
    return _row(
        "tickets", count, [recorder], (start, end), "a record, from submit until its ticket was waited for"
    )


def raw_frames(log: WriteAheadLog, row: BenchRow, seconds: float) -> tuple[BenchRow, BenchRow]:
    """Return the row with its frames compared, and a row of the raw device writing equal frames, as many in parallel.

    Like a frame: with O_DSYNC, and past the page cache if the log is. A frame's size is the mean of the row, to the
    next whole block.
    """
    wanted = row.frame_bytes or DIRECT_BYTES
    direct = log.statistics().alignment == DIRECT_BYTES
    baseline = raw_baseline(
        log.location,
        block_bytes=max(1, round(wanted / DIRECT_BYTES)) * DIRECT_BYTES if direct else round(wanted),
        seconds=seconds,
        threads=log.options.in_flight,
        direct=direct,
    )
    raw_bytes_per_s = baseline.writes_per_s * baseline.block_bytes
    what = f"a write of as many bytes as a frame of the row above, {baseline.mode}"
    raw = _raw_row("raw frames", baseline, what, frames=baseline.writes, frame_bytes=baseline.block_bytes)
    times = (row.frames or 0) * wanted / row.seconds / raw_bytes_per_s
    return replace(row, times_raw_frames=times), raw


class PlainPuts:
    """An object store that keeps the key of each put, before the request; `append` puts an object, and makes no log."""

    statistics = LogStatistics

    def __init__(self, url: str) -> None:
        self._store, self._numbers, self.keys = open_store(url), count(), list[str]()

    def append(self, value: bytes) -> None:
        """Put an object of its own, with the patience that a log has."""
        reads = PatientReads(self, lambda: Patience(30.0))
        put_own(reads, f"plain/{next(self._numbers)}", value, None)

    def __getattr__(self, name: str) -> Any:
        do = getattr(self._store, name)
        return partial(self._put, do) if name.startswith("put_") else do

    def _put(self, do: Callable[..., str], key: str, *rest: Any) -> str:
        self.keys.append(key)
        return do(key, *rest)


def beside_puts(url: str, options: LogOptions, value: bytes, way: Way, seconds: float) -> list[BenchRow]:
    """Measure a way into a new log on object storage, then plain PUTs of objects as large as its own.

    The PUTs are made by the same store, as many at a time as the way can have frames in flight. Nothing is below `url`
    before, and all that was put there is removed.
    """
    store: Any = PlainPuts(url)
    try:
        # Without a policy, a log on object storage is adaptive.
        with open_log(store, "x", replace(options, policy=options.policy or TakeAll())) as log:
            log.append(value)  # makes the first bulk
            row = _used(store, lambda: way(log), lambda: log.statistics().records_acked)
        at_once = min(options.in_flight, row.callers if row.way in CLOSED_WAYS else options.in_flight)
        data = os.urandom(BULK_HEADER_BYTES + round(row.frame_bytes or 0))
        raw = _used(store, lambda: _threads(store, at_once, data, seconds), lambda: len(store.keys))
    finally:
        store.delete_many(store.keys)
        store.close()
        if url.startswith(FILES):
            shutil.rmtree(os.path.expanduser(url.removeprefix(FILES)), ignore_errors=True)
    raw = replace(raw, way="plain puts", latency_of="a PUT", frames=raw.records, frame_bytes=len(data))
    times = (row.frames or 0) / row.seconds / raw.records_per_s if raw.records else None
    raw_per_s = raw.records_per_s or float("nan")
    return [replace(row, raw_per_s=raw_per_s, times_raw_frames=times, times_raw_bytes=None), raw]


def _used(store: PlainPuts, measure: Callable[[], BenchRow], done: Callable[[], int]) -> BenchRow:
    """Measure, and add the PUTs and the processor time of each record that was done, of the warm-up too."""
    cpu_s, puts, records = process_time(), len(store.keys), done()
    row = measure()
    cpu_s, puts, records = process_time() - cpu_s, len(store.keys) - puts, done() - records
    return replace(row, cpu_us=cpu_s / records * 1e6, puts_per_record=puts / records)


def _many(log: WriteAheadLog, value: bytes, seconds: float) -> BenchRow:
    """`append_many` by one thread: a list of bytes objects a call."""
    values = [value] * records_per_call(len(value))
    return _bulk(log, "append_many", lambda: log.append_many(values), len(value), seconds)


def _arrow(log: WriteAheadLog, value: bytes, seconds: float) -> BenchRow:
    """`append_arrow` by one thread: a table a call."""
    table = pa.table({"value": pa.array([value] * records_per_call(len(value)), pa.binary())})
    return _bulk(log, "append_arrow", lambda: log.append_arrow(table), len(value), seconds)


def records_per_call(record_bytes: int) -> int:
    """Return the records per call: 10,000, or as many as fit in 16 MiB."""
    return max(1, min(RECORDS_PER_CALL, CALL_BYTES_MAX // record_bytes))


def _bulk(
    log: WriteAheadLog, way: str, call: Callable[[], object], record_bytes: int, seconds: float
) -> BenchRow:
    """Whole calls by one thread, between two raw loops that write as many bytes as a call has."""
    raw = [_raw_bytes_per_s(log, record_bytes, seconds)]
    recorder, records = ThreadRecorder(), records_per_call(record_bytes)
    call()
    start = _mark(log)
    until = perf_counter() + seconds
    while perf_counter() < until:
        began = perf_counter_ns()
        call()
        recorder.record(began, perf_counter_ns(), records)
    end = _mark(log)
    raw.append(_raw_bytes_per_s(log, record_bytes, seconds))
    row = _row(way, 1, [recorder], (start, end), f"a call with {counted(records, 'record')}")
    raw_bytes_per_s = sum(raw) / len(raw)
    return replace(row, times_raw_bytes=row.records_per_s * record_bytes / raw_bytes_per_s)


def _raw_bytes_per_s(log: WriteAheadLog, record_bytes: int, seconds: float) -> float:
    if not os.path.isdir(log.location):
        return float("nan")
    block_bytes = record_bytes * records_per_call(record_bytes)
    baseline = raw_baseline(log.location, block_bytes=block_bytes, seconds=max(seconds / 4, RAW_S_MIN))
    return baseline.writes_per_s * block_bytes
