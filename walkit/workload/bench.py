"""`walkit bench write`: how many records a second, by how many ways in, beside the raw device in the same run."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from time import perf_counter, perf_counter_ns
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from walkit.config import LogOptions
from walkit.log.opening import open_log
from walkit.log.wal import WriteAheadLog
from walkit.measure import LatencyHistogram, MachineFacts, raw_baseline

KEY = b"key-0001"
RAW_BLOCK_BYTES = 256
"""Bytes of one write of the raw loop: about what one frame of one 100-byte record takes."""


@dataclass(frozen=True, kw_only=True)
class BenchRow:
    """One way in, measured: records per second, and the latency of one acknowledgement in microseconds."""

    way: str
    callers: int
    records: int
    seconds: float
    p50_us: float
    p99_us: float

    @property
    def records_per_s(self) -> float:
        """Records acknowledged per second."""
        return self.records / self.seconds if self.seconds else float("nan")


@dataclass(frozen=True, kw_only=True)
class BenchReport:
    """What one `walkit bench write` measured; `raw` rows are the bare device, before, between and after."""

    record_bytes: int
    durability: str
    location: str
    machine: MachineFacts
    rows: tuple[BenchRow, ...] = field(default_factory=tuple)

    @property
    def raw_per_s(self) -> float:
        """Median of the raw loops, writes per second."""
        raw = [r.records_per_s for r in self.rows if r.way == "raw"]
        return statistics.median(raw) if raw else float("nan")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        system = self.machine.file_system
        return {
            "bench": "write",
            "record_bytes": self.record_bytes,
            "durability": self.durability,
            "file_system": None if system is None else system.type,
            "tmpfs": bool(system is not None and system.tmpfs),
            "raw_per_s": round(self.raw_per_s, 1),
            "rows": [
                {
                    "way": row.way,
                    "callers": row.callers,
                    "records": row.records,
                    "records_per_s": round(row.records_per_s, 1),
                    "times_raw": round(row.records_per_s / self.raw_per_s, 3),
                    "p50_us": round(row.p50_us, 1),
                    "p99_us": round(row.p99_us, 1),
                }
                for row in self.rows
            ],
        }

    def text(self) -> str:
        """Return the table as aligned text."""
        head = f"{'way in':<14}{'callers':>8}{'records/s':>14}{'x raw':>9}{'p50 us':>11}{'p99 us':>11}"
        lines = [
            f"{row.way:<14}{row.callers:>8,}{row.records_per_s:>14,.0f}{row.records_per_s / self.raw_per_s:>9.2f}"
            f"{row.p50_us:>11,.1f}{row.p99_us:>11,.1f}"
            for row in self.rows
        ]
        system = self.machine.file_system
        where = "an unknown file system" if system is None else system.type
        notes = [f"{self.record_bytes} byte values, durability {self.durability}, on {where}"]
        if system is not None and system.tmpfs:
            notes.append("tmpfs: sync means nothing here")
        return "\n".join([*notes, head, *lines])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.text())}</pre>"


def _row(way: str, callers: int, records: int, seconds: float, samples_ns: np.ndarray[Any, Any]) -> BenchRow:
    histogram = LatencyHistogram.from_samples(samples_ns)
    return BenchRow(
        way=way,
        callers=callers,
        records=records,
        seconds=seconds,
        p50_us=histogram.percentile(50) / 1000,
        p99_us=histogram.percentile(99) / 1000,
    )


def _raw(folder: str, seconds: float) -> BenchRow:
    baseline = raw_baseline(folder, block_bytes=RAW_BLOCK_BYTES, seconds=seconds)
    latencies = baseline.latencies
    return BenchRow(
        way="raw",
        callers=1,
        records=int(latencies.count),
        seconds=latencies.count / baseline.writes_per_s,
        p50_us=latencies.percentile(50) / 1000,
        p99_us=latencies.percentile(99) / 1000,
    )


def _threads(log: WriteAheadLog, callers: int, value: bytes, seconds: float) -> BenchRow:
    """`append` by threads, each waiting for its acknowledgement before the next."""
    samples: list[list[int]] = [[] for _ in range(callers)]
    ready, stop = threading.Barrier(callers + 1), threading.Event()

    def write(mine: list[int]) -> None:
        ready.wait()
        while not stop.is_set():
            began = perf_counter_ns()
            log.append(value, KEY)
            mine.append(perf_counter_ns() - began)

    threads = [threading.Thread(target=write, args=(mine,)) for mine in samples]
    for thread in threads:
        thread.start()
    ready.wait()
    began = perf_counter()
    stop.wait(seconds)
    counted = [len(mine) for mine in samples]
    took = perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    records = sum(counted)
    return _row("append", callers, records, took, np.concatenate([np.array(s, np.int64) for s in samples]))


def _tasks(log: WriteAheadLog, callers: int, value: bytes, seconds: float) -> BenchRow:
    """`append_async` by tasks of one event loop, which runs on a thread of its own."""
    samples: list[int] = []
    took = [0.0]

    async def write(until: float) -> None:
        while perf_counter() < until:
            began = perf_counter_ns()
            await log.append_async(value, KEY)
            samples.append(perf_counter_ns() - began)

    async def run() -> None:
        began = perf_counter()
        await asyncio.gather(*(write(began + seconds) for _ in range(callers)))
        took[0] = perf_counter() - began

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run()))
    thread.start()
    thread.join()
    loop.close()
    return _row("append_async", callers, len(samples), took[0], np.array(samples, np.int64))


def _submit(log: WriteAheadLog, value: bytes, seconds: float) -> BenchRow:
    """`submit` by one thread that does not wait; the latency is that of every 100th ticket."""
    done: list[int] = []
    records = 0
    began = perf_counter()
    while perf_counter() - began < seconds:
        for _ in range(99):
            ticket = log.submit(value, KEY)
        at = perf_counter_ns()
        ticket = log.submit(value, KEY)
        ticket.add_done_callback(lambda _, at=at: done.append(perf_counter_ns() - at))  # type: ignore[misc]
        records += 100
    ticket.result()
    took = perf_counter() - began
    log.sync()
    return _row("submit", 1, records, took, np.array(done, np.int64))


def _many(log: WriteAheadLog, value: bytes, seconds: float) -> BenchRow:
    """`append_many` by one thread, 100,000 records a call; the latency is that of a call."""
    values = [value] * 100_000
    samples: list[int] = []
    began = perf_counter()
    while perf_counter() - began < seconds:
        at = perf_counter_ns()
        log.append_many(values)
        samples.append(perf_counter_ns() - at)
    took = perf_counter() - began
    return _row("append_many", 1, len(samples) * len(values), took, np.array(samples, np.int64))


def bench_write(
    *,
    writers: list[int],
    tasks: list[int],
    record_bytes: int = 100,
    seconds: float = 2.0,
    path: str | None = None,
    durability: str = "sync",
    progress: bool = True,
) -> BenchReport:
    """Measure every way in, one after the other, each on a fresh log, with the raw loop between them.

    `path` is a folder on the device to measure (default: the folder for temporary files); nothing is left in it.
    Compare rows of one report with each other, not with another report: machines drift.
    """
    folder = tempfile.mkdtemp(prefix="walkit-bench-", dir=path)
    value = os.urandom(record_bytes)
    options = LogOptions(durability=durability)  # type: ignore[arg-type]
    ways: list[Callable[[WriteAheadLog], BenchRow]] = [
        *(lambda log, n=n: _threads(log, n, value, seconds) for n in writers),  # type: ignore[misc]
        *(lambda log, n=n: _tasks(log, n, value, seconds) for n in tasks),  # type: ignore[misc]
        lambda log: _submit(log, value, seconds),
        lambda log: _many(log, value, seconds),
    ]
    rows = []
    try:
        for index, way in enumerate(tqdm(ways, desc="bench write", disable=not progress)):
            rows.append(_raw(folder, max(seconds / 4, 0.2)))
            with open_log(os.path.join(folder, f"log-{index}"), "x", options) as log:
                log.append(value, KEY)
                rows.append(way(log))
            shutil.rmtree(os.path.join(folder, f"log-{index}"))
        rows.append(_raw(folder, max(seconds / 4, 0.2)))
        machine = MachineFacts.here(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return BenchReport(
        record_bytes=record_bytes, durability=durability, location=folder, machine=machine, rows=tuple(rows)
    )
