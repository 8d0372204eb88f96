"""`walkit bench delta`: a delta reader against one that reads the log alone, on the folder and on remote storage.

The writer appends records of one size at an even rate, in frames of one size, to a folder. Readers of the same process
follow it: by delta with buffers of some sizes, and by the log alone (a buffer of 0 bytes). On the folder reading the
log costs next to nothing. Then the reader's storage is the model of one that is far away. The lag of a record is from
its durability to its application, as sampled. The same is simulated in virtual time, where this machine has no part.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from walkit._internal.arguments import check_number, check_progress, check_whole
from walkit._internal.report import Cells, TableReport
from walkit.bench.runner import Case, in_turns, work_folder
from walkit.bench.sampling import Samples, sampled_lsns
from walkit.config import LogOptions
from walkit.log.wal import WriteAheadLog
from walkit.models.remote_storage import REMOTE, RemoteStorage
from walkit.objects.entrance import open_log
from walkit.replication.delta.poll_server import DeltaOptions
from walkit.replication.delta.reader import DeltaReader
from walkit.replication.delta.replayer import ReplayLimits
from walkit.replication.primary.server import Primary
from walkit.simulate.delta_lag import delta_lag
from walkit.storage.file import FileStorage

SAMPLE_S = 0.001
WAIT_S = 120.0
KEYS = 1000
LIGHT_PER_S = 100.0
"""Records a second of the light load."""
LIMITS = ReplayLimits(loads_max=8, bytes_max=64 << 20)
SIMULATED_S = 0.5
IN_FLIGHT = 4
"""Frames that are written at a time: with one, a slow disk would set the rate."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaBenchRow:
    """The samples of one reader, in milliseconds."""

    load: str
    """"light" or "steady"."""
    storage: str
    """"folder", the name of the modelled storage, or the same "in virtual time"."""
    buffer_bytes: int
    """0: the log alone."""
    mb_per_s: float
    """Bytes of values that the writer made durable a second, in millions."""
    rounds: int
    """How often it was measured; figures below are medians of the rounds, `_low` and `_high` their least and most."""
    lags: int
    """Records whose lag is known, of all rounds."""
    lag_p50_ms: float
    """From a record's durability to its application."""
    lag_p50_low_ms: float
    lag_p50_high_ms: float
    lag_p99_ms: float
    answers: int
    """Answers with a delta, of all rounds."""
    answer_p50_ms: float | None
    """From an answer with a delta to its application; None without one."""
    answer_p50_low_ms: float | None
    answer_p50_high_ms: float | None
    hit_rate: float
    loads: int
    """Reads of the log, of all rounds."""


class _Round(NamedTuple):
    """The samples of one reader in one round, in milliseconds."""

    mb_per_s: float
    lags: int
    lag_p50_ms: float
    lag_p99_ms: float
    answers: int
    answer_p50_ms: float | None
    delta_bytes: int
    log_bytes: int
    loads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeltaBenchReport(TableReport):
    """Every reader of one run."""

    bench = "delta"
    title = "Delta replay"
    left_columns = 3

    record_bytes: int
    frame_bytes: int
    mb_per_s: float
    seconds: float
    rounds: int
    cores: int
    place: str
    rows: tuple[DeltaBenchRow, ...]

    @property
    def notes(self) -> list[str]:
        """The measured rows and their machine."""
        wanted = (
            f"records of {self.record_bytes:,} B in frames of about {self.frame_bytes:,} B, {self.mb_per_s:g} MB/s "
            f"wanted, {self.seconds:g} s each; light load: {LIGHT_PER_S:g} records/s"
        )
        return [
            wanted,
            f"medians of {self.rounds} rounds, least to most in brackets; n: records, answers, of all rounds",
            f"on {self.place}, {self.cores} cores; writer, primary and reader are one process",
            *self._found(),
        ]

    def _found(self) -> list[str]:
        """Say, for each load, storage and buffer, which way of reading lags less."""
        found = []
        for row in self.rows:
            if not row.buffer_bytes:
                continue
            alone = self.row(row.load, row.storage, 0)
            share = row.lag_p50_ms / max(alone.lag_p50_ms, 1e-9)
            apart = row.lag_p50_high_ms < alone.lag_p50_low_ms or alone.lag_p50_high_ms < row.lag_p50_low_ms
            if row.rounds == 1:
                which = "one round: no spread"
            elif apart:
                which = f"{'the delta' if share < 1 else 'the log'} lags less in every round"
            else:
                which = "the rounds overlap: neither is shown to lag less"
            found.append(
                f"{row.load}, {row.storage}, buffer {row.buffer_bytes:,} B: by delta the median lag is {share:.2f} of "
                f"the log's ({which})"
            )
        return found

    def row(self, load: str, storage: str, buffer_bytes: int) -> DeltaBenchRow:
        """Return one row, or raise KeyError."""
        for row in self.rows:
            if (row.load, row.storage, row.buffer_bytes) == (load, storage, buffer_bytes):
                return row
        raise KeyError((load, storage, buffer_bytes))

    def _facts(self) -> dict[str, Any]:
        return asdict(self)

    def _head(self) -> Cells:
        return (
            *("load", "storage", "reader", "MB/s", "lag p50", "lag p99", "n", "answer p50", "answers"),
            *("by delta", "loads"),
        )

    def _cells(self) -> list[Cells]:
        return [
            (
                row.load,
                row.storage,
                f"buffer {row.buffer_bytes:,} B" if row.buffer_bytes else "the log alone",
                f"{row.mb_per_s:,.2f}",
                _spread(row.lag_p50_ms, row.lag_p50_low_ms, row.lag_p50_high_ms),
                f"{row.lag_p99_ms:,.2f} ms",
                f"{row.lags:,}",
                _spread(row.answer_p50_ms, row.answer_p50_low_ms, row.answer_p50_high_ms),
                f"{row.answers:,}",
                f"{row.hit_rate:.0%}",
                f"{row.loads:,}",
            )
            for row in self.rows
        ]


def _spread(median: float | None, low: float | None, high: float | None) -> str:
    return "" if median is None else f"{median:,.2f} ms ({low:,.2f} to {high:,.2f})"


def bench_delta(
    *,
    mb_per_s: float = 20.0,
    record_bytes: int = 1024,
    frame_bytes: int = 16 * 1024,
    buffers: Sequence[int] = (32 * 1024, 256 * 1024),
    seconds: float = 3.0,
    rounds: int = 3,
    path: str | os.PathLike[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> DeltaBenchReport:
    """Measure, in new folders below `path` (the system's folder for temporary files), which are removed.

    Each reader takes `seconds` in each of `rounds` rounds, in turns; there are four with each buffer, and four of the
    log alone. `progress` gets the name of each. OptionsError for numbers that cannot be measured with.
    """
    check_whole(rounds, "rounds", 1, 1000)
    check_whole(frame_bytes, "frame_bytes", 1, 1 << 20)
    check_whole(record_bytes, "record_bytes", 1, frame_bytes)
    check_number(seconds, "seconds", 0.05, 3600)
    check_number(mb_per_s, "mb_per_s", 0, 10_000, above=True)
    for size in buffers:
        check_whole(size, "buffers", 1, 32 << 20)
    check_progress(progress, "a text")
    loads = (
        ("light", LIGHT_PER_S * record_bytes / 1e6, 1),
        ("steady", mb_per_s, max(frame_bytes // record_bytes, 1)),
    )
    readers = [
        (load, rate, batch, remote, buffer_bytes)
        for load, rate, batch in loads
        for remote in (False, True)
        for buffer_bytes in (0, *buffers)
    ]
    cases = [
        Case(
            f"{load} load, {'remote' if remote else 'folder'}, buffer {buffer_bytes:,}",
            partial(_measured, rate, batch, record_bytes, seconds, remote, buffer_bytes),
        )
        for load, rate, batch, remote, buffer_bytes in readers
    ]
    with work_folder(path) as base:
        found = in_turns(cases, rounds, base, progress or (lambda name: None))
    rows = [
        _row_of(load, REMOTE.name if remote else "folder", buffer_bytes, of_reader)
        for (load, _, _, remote, buffer_bytes), of_reader in zip(readers, found, strict=True)
    ]
    rows += [_simulated(mb_per_s, record_bytes, frame_bytes, size) for size in (0, *buffers)]
    return DeltaBenchReport(
        record_bytes=record_bytes,
        frame_bytes=frame_bytes,
        mb_per_s=mb_per_s,
        seconds=seconds,
        rounds=rounds,
        cores=os.cpu_count() or 1,
        place=base,
        rows=tuple(rows),
    )


def _row_of(load: str, storage: str, buffer_bytes: int, found: Sequence[_Round]) -> DeltaBenchRow:
    lags = [each.lag_p50_ms for each in found]
    answers = [each.answer_p50_ms for each in found if each.answer_p50_ms is not None]
    by_delta, by_log = sum(each.delta_bytes for each in found), sum(each.log_bytes for each in found)
    return DeltaBenchRow(
        load=load,
        storage=storage,
        buffer_bytes=buffer_bytes,
        mb_per_s=float(np.median([each.mb_per_s for each in found])),
        rounds=len(found),
        lags=sum(each.lags for each in found),
        lag_p50_ms=float(np.median(lags)),
        lag_p50_low_ms=min(lags),
        lag_p50_high_ms=max(lags),
        lag_p99_ms=float(np.median([each.lag_p99_ms for each in found])),
        answers=sum(each.answers for each in found),
        answer_p50_ms=float(np.median(answers)) if answers else None,
        answer_p50_low_ms=min(answers, default=None),
        answer_p50_high_ms=max(answers, default=None),
        hit_rate=by_delta / max(by_delta + by_log, 1),
        loads=sum(each.loads for each in found),
    )


def _measured(
    mb_per_s: float,
    batch: int,
    record_bytes: int,
    seconds: float,
    remote: bool,
    buffer_bytes: int,
    folder: str,
) -> _Round:
    shared = FileStorage(folder)
    options = LogOptions(
        segment_bytes=256 << 20, in_flight=IN_FLIGHT, frame_bytes_max=2 * batch * (record_bytes + 64) + 8192
    )
    with open_log(folder, "x", options) as log:
        log.append(b"first", key=b"0")
        storage = RemoteStorage(shared, seed=7) if remote else shared
        with (
            Primary(log, delta=DeltaOptions(buffer_bytes=buffer_bytes)) as primary,
            DeltaReader(storage, primary.address, limits=LIMITS) as reader,
        ):
            reader.wait_for(log.append(b"warm", key=b"0").last_lsn, WAIT_S)
            before = reader.statistics()

            def lsns() -> tuple[int, int]:
                applied = reader.applied_lsn  # before the log's end, which can only have grown since
                return log.durable_lsn, applied

            with sampled_lsns(lsns, SAMPLE_S) as samples:
                made = _append(log, mb_per_s, batch, record_bytes, seconds)
                reader.wait_for(log.acked_lsn, WAIT_S)
            after, answers = reader.statistics(), reader.latencies()["answer"]
    ms = lags_ms(samples.rows())
    return _Round(
        mb_per_s=made,
        lags=len(ms),
        lag_p50_ms=float(np.median(ms)),
        lag_p99_ms=float(np.quantile(ms, 0.99)),
        answers=len(answers),
        answer_p50_ms=float(np.median(answers)) / 1e6 if len(answers) else None,
        delta_bytes=after.delta_bytes - before.delta_bytes,
        log_bytes=after.loaded_bytes - before.loaded_bytes,
        loads=after.loads - before.loads,
    )


def _simulated(mb_per_s: float, record_bytes: int, frame_bytes: int, buffer_bytes: int) -> DeltaBenchRow:
    found = delta_lag(
        bytes_per_s=mb_per_s * 1e6,
        frame_bytes=frame_bytes,
        record_bytes=record_bytes,
        seconds=SIMULATED_S,
        options=DeltaOptions(buffer_bytes=buffer_bytes),
    )
    once = _Round(
        mb_per_s=mb_per_s,
        lags=found.frames,
        lag_p50_ms=found.median_ms,
        lag_p99_ms=found.p99_ms,
        answers=found.answers.deltas,
        answer_p50_ms=None,
        delta_bytes=found.replay.delta_bytes,
        log_bytes=found.replay.loaded_bytes,
        loads=found.replay.loads,
    )
    return _row_of("steady", f"{REMOTE.name} in virtual time", buffer_bytes, [once])


def _append(log: WriteAheadLog, mb_per_s: float, batch: int, record_bytes: int, seconds: float) -> float:
    """Append batches at an even rate for so long; return the MB/s of values that were made durable."""
    values = [os.urandom(record_bytes)] * batch
    every_s = batch * record_bytes / (mb_per_s * 1e6)
    over = threading.Event()
    began = time.perf_counter()
    count = 0
    while (now := time.perf_counter() - began) < seconds:
        if count * every_s > now:
            over.wait(count * every_s - now)
        log.submit_many(values, [b"%d" % ((count * batch + n) % KEYS) for n in range(batch)])
        count += 1
    log.sync()
    return count * batch * record_bytes / (time.perf_counter() - began) / 1e6


def lags_ms(samples: Samples) -> npt.NDArray[np.float64]:
    """Return the lag of each LSN that was seen: from when the log had it to when the reader had it, ms."""
    at, durable, applied = samples.T
    lsns = np.arange(durable[0] + 1, applied[-1] + 1)
    if not len(lsns):
        return np.zeros(1)
    had = at[np.minimum(np.searchsorted(durable, lsns), len(at) - 1)]
    got = at[np.minimum(np.searchsorted(applied, lsns), len(at) - 1)]
    lags: npt.NDArray[np.float64] = np.maximum(got - had, 0.0) * 1000
    return lags
